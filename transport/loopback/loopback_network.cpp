// SPDX-License-Identifier: Apache-2.0
#include "transport/loopback/loopback_network.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "base/random.hpp"
#include "transport/frame_size.hpp"

namespace tidemill::transport {
namespace {

// What will happen to the listener of a side.
struct Event {
  std::uint64_t side = 0;
  bool closed = false;
  Buffer frame;   // unless `closed`
  Status reason;  // if `closed`
};

}  // namespace

struct LoopbackNetwork::State {
  State(std::uint64_t seed, const LoopbackFaults& chosen, std::function<void()> on_event)
      : random(seed), faults(chosen), wake(std::move(on_event)) {}

  [[nodiscard]] bool happens(double share) { return share > 0.0 && random.uniform() < share; }

  // Events of one time happen in the order in which they were added.
  void add(Duration delay, Event event) {
    events.emplace(now + delay, std::move(event));
    if (wake) {
      wake();
    }
  }

  void carry(std::uint64_t from, std::uint64_t to, const Buffer& frame);
  void carry(std::uint64_t from, std::uint64_t to, const Buffer& frame, FrameFate fate);
  void break_connection(std::uint64_t from, std::uint64_t to);
  [[nodiscard]] Buffer damaged(const Buffer& frame);
  void arrive_in_order(std::uint64_t to, Duration delay, const Buffer& frame);
  void close(std::uint64_t first, const Status& for_first, std::uint64_t second,
             const Status& for_second);

  RandomStream random;
  LoopbackFaults faults;
  std::function<void()> wake;
  ChooseFate choose;  // null: chance decides
  Duration chosen_delay{};
  TimePoint now{};
  std::uint64_t last_side = 0;
  std::uint64_t num_sides = 0;   // that are not destroyed
  std::set<std::uint64_t> open;  // sides that are not closed
  // Of the sides whose listener has not been told that they are closed. Null before the start.
  std::map<std::uint64_t, ConnectionListener*> listeners;
  std::map<std::uint64_t, TimePoint> latest_arrivals;  // of frames at a side
  std::multimap<std::uint64_t, Event> waiting;         // what happened to a side before its start
  std::multimap<TimePoint, Event> events;
};

void LoopbackNetwork::State::break_connection(std::uint64_t from, std::uint64_t to) {
  const Status reason(Errc::kUnavailable, "the network has broken the connection");
  close(from, reason, to, reason);
}

// Returns the frame with one bit flipped. An empty frame stays as it is.
Buffer LoopbackNetwork::State::damaged(const Buffer& frame) {
  if (frame.size_bytes() == 0) {
    return frame;
  }
  std::vector<std::byte> bytes(frame.bytes().begin(), frame.bytes().end());
  bytes[random.below(bytes.size())] ^= std::byte{1} << random.below(8);
  return Buffer::adopt(std::move(bytes), DType::kU8);
}

// Schedules the arrival of a frame at the side `to`, after the frames that were sent before.
void LoopbackNetwork::State::arrive_in_order(std::uint64_t to, Duration delay,
                                             const Buffer& frame) {
  TimePoint& latest = latest_arrivals[to];
  latest = std::max(now + delay, latest);
  add(latest - now, {to, false, frame, {}});
}

// Schedules the arrival of a frame at the side `to`, subject to the faults.
void LoopbackNetwork::State::carry(std::uint64_t from, std::uint64_t to, const Buffer& frame) {
  if (choose) {
    carry(from, to, frame, choose(frame));
    return;
  }
  if (happens(faults.broken)) {
    break_connection(from, to);
    return;
  }
  if (happens(faults.lost)) {
    return;
  }
  const int copies = happens(faults.repeated) ? 2 : 1;
  for (int i = 0; i < copies; ++i) {
    const Buffer copy = frame.size_bytes() > 0 && happens(faults.damaged) ? damaged(frame) : frame;
    const auto range = static_cast<std::uint64_t>(faults.max_delay.count()) + 1;
    const Duration delay(static_cast<std::int64_t>(random.below(range)));
    if (happens(faults.reordered)) {
      add(delay, {to, false, copy, {}});
    } else {
      arrive_in_order(to, delay, copy);
    }
  }
}

// Does the same, with a fate that was chosen.
void LoopbackNetwork::State::carry(std::uint64_t from, std::uint64_t to, const Buffer& frame,
                                   FrameFate fate) {
  switch (fate) {
    case FrameFate::kLost: return;
    case FrameFate::kBroken: return break_connection(from, to);
    case FrameFate::kDamaged: return arrive_in_order(to, {}, damaged(frame));
    case FrameFate::kReordered: return add(chosen_delay, {to, false, frame, {}});
    case FrameFate::kDelayed: return arrive_in_order(to, chosen_delay, frame);
    case FrameFate::kRepeated: arrive_in_order(to, {}, frame); [[fallthrough]];
    case FrameFate::kCarried: arrive_in_order(to, {}, frame);
  }
}

// Ends both sides. What was on the way is lost.
void LoopbackNetwork::State::close(std::uint64_t first, const Status& for_first,
                                   std::uint64_t second, const Status& for_second) {
  std::erase_if(events, [&](const auto& entry) {
    return entry.second.side == first || entry.second.side == second;
  });
  waiting.erase(first);
  waiting.erase(second);
  open.erase(first);
  open.erase(second);
  add(Duration::zero(), {first, true, {}, for_first});
  add(Duration::zero(), {second, true, {}, for_second});
}

class LoopbackNetwork::Side final : public Connection {
public:
  Side(State& state, std::uint64_t self, std::uint64_t other)
      : state_(state), self_(self), other_(other) {
    ++state_.num_sides;
  }
  ~Side() override {
    close();
    state_.listeners.erase(self_);
    state_.waiting.erase(self_);
    state_.latest_arrivals.erase(self_);
    --state_.num_sides;
  }

  void start(ConnectionListener& listener) override {
    ConnectionListener*& started = state_.listeners.at(self_);
    TIDEMILL_CHECK(started == nullptr) << "started twice";
    started = &listener;
    const auto [begin, end] = state_.waiting.equal_range(self_);
    for (auto it = begin; it != end; ++it) {
      state_.add(Duration::zero(), std::move(it->second));
    }
    state_.waiting.erase(begin, end);
  }

  Status send(const Buffer& frame) override {
    TIDEMILL_RETURN_IF_ERROR(check_frame_size(frame));
    if (!state_.open.contains(self_)) {
      return {Errc::kUnavailable, "connection: it is closed"};
    }
    state_.carry(self_, other_, frame);
    return {};
  }

  void close() override {
    if (state_.open.contains(self_)) {
      state_.close(self_, {Errc::kUnavailable, "this side has closed the connection"}, other_,
                   {Errc::kUnavailable, "the other side has closed the connection"});
    }
  }

private:
  State& state_;
  const std::uint64_t self_;
  const std::uint64_t other_;
};

LoopbackNetwork::LoopbackNetwork(std::uint64_t seed, const LoopbackFaults& faults,
                                 std::function<void()> wake)
    : state_(std::make_unique<State>(seed, faults, std::move(wake))) {
  TIDEMILL_CHECK(faults.max_delay >= Duration::zero()) << faults.max_delay.count();
}

LoopbackNetwork::~LoopbackNetwork() {
  TIDEMILL_CHECK(state_->num_sides == 0) << state_->num_sides << " sides outlive their network";
}

void LoopbackNetwork::set_fates(ChooseFate choose, Duration delay) {
  TIDEMILL_CHECK(delay > Duration::zero()) << delay.count();
  state_->choose = std::move(choose);
  state_->chosen_delay = delay;
}

LoopbackNetwork::Pair LoopbackNetwork::connect() {
  const std::uint64_t a = ++state_->last_side;
  const std::uint64_t b = ++state_->last_side;
  state_->listeners.emplace(a, nullptr);
  state_->listeners.emplace(b, nullptr);
  state_->open.insert({a, b});
  return {std::make_unique<Side>(*state_, a, b), std::make_unique<Side>(*state_, b, a)};
}

void LoopbackNetwork::advance(TimePoint now) {
  TIDEMILL_CHECK(now >= state_->now) << "time goes back";
  // An event may add others, also at its own time.
  while (!state_->events.empty() && state_->events.begin()->first <= now) {
    state_->now = std::max(state_->now, state_->events.begin()->first);
    Event event = std::move(state_->events.begin()->second);
    state_->events.erase(state_->events.begin());
    const auto listener = state_->listeners.find(event.side);
    if (listener == state_->listeners.end()) {
      continue;
    }
    if (listener->second == nullptr) {
      const std::uint64_t side = event.side;
      state_->waiting.emplace(side, std::move(event));
      continue;
    }
    ConnectionListener& target = *listener->second;
    if (event.closed) {
      state_->listeners.erase(listener);
      target.on_closed(event.reason);
    } else {
      target.on_frame(event.frame);
    }
  }
  state_->now = now;
}

TimePoint LoopbackNetwork::next_event() const {
  return state_->events.empty() ? TimePoint::max() : state_->events.begin()->first;
}

}  // namespace tidemill::transport
