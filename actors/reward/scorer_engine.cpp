// SPDX-License-Identifier: Apache-2.0
// The engine sends every sample to its client actor, which keeps a bounded number of them in flight
// at the scorer. The deadline of a sample starts when it is sent, and starts again with each reply
// to a sample sent before it, because a scorer may score one sample after another. If the scorer
// does not reply for the whole deadline, all samples in flight fail.
#include "actors/reward/scorer_engine.hpp"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include <caf/all.hpp>

#include "actors/errors.hpp"

namespace tidemill::actors {
namespace {

using engines::RewardRequest;
using engines::RewardResult;
using engines::RewardSink;

constexpr int kMaxInFlight = 64;  // samples with the scorer

// Holds replies until the next step. Shared with the client actor.
struct Mailbox {
  void put(std::uint64_t key, RewardResult result) {
    {
      const std::lock_guard lock(mutex);
      replies.emplace_back(key, std::move(result));
    }
    changed.notify_one();
  }
  void end(Status why) {
    {
      const std::lock_guard lock(mutex);
      ended = std::move(why);
    }
    changed.notify_one();
  }
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::pair<std::uint64_t, RewardResult>> replies;  // with their keys
  Status ended;                                                 // not ok once the scorer terminated
};

RewardResult failed_result(SampleId id, const std::string& why) {
  RewardResult result;
  result.id = id;
  result.error = "the scorer: " + why;
  return result;
}

// Returns the message of a termination, with the reason if the scorer gave one.
std::string end_text(const caf::error& reason) {
  const bool plain = !reason || reason.category() == caf::atom("exit");
  return "it terminated" + (plain ? std::string() : ": " + from_caf_error(reason).message());
}

// A sample in flight at the scorer.
struct InFlight {
  SampleId id;
  caf::actor_clock::time_point since;  // never earlier than that of a sample sent before
};

struct ClientState {
  static inline const char* name = "scorer_client";
  ClientState() = default;  // not an aggregate: CAF would build it from `self`

  std::shared_ptr<Mailbox> mailbox;
  ScorerActor scorer;
  Duration deadline{0};
  std::deque<std::pair<std::uint64_t, RewardRequest>> waiting;  // by key
  std::map<std::uint64_t, InFlight> in_flight;                  // by key, in the order of sending
  bool wake_scheduled = false;                                  // a wake message is scheduled
  bool ended = false;  // the scorer has terminated: all samples fail, and late replies are dropped
};

using Client = caf::stateful_actor<ClientState>*;

void send_more(Client self);

void on_reply(Client self, std::uint64_t key, RewardResult result) {
  auto& state = self->state;
  const auto it = state.in_flight.find(key);
  if (it == state.in_flight.end()) {
    return;  // too late
  }
  result.id = it->second.id;
  const auto now = self->clock().now();
  for (auto later = state.in_flight.erase(it); later != state.in_flight.end(); ++later) {
    later->second.since = now;
  }
  state.mailbox->put(key, std::move(result));
  send_more(self);
}

void send_request(Client self, std::uint64_t key, RewardRequest request) {
  auto& state = self->state;
  const SampleId id = request.id;
  state.in_flight.emplace(key, InFlight{id, self->clock().now()});
  // No reply can take longer, since fewer than kMaxInFlight samples were sent before this one.
  const Duration longest = std::min(state.deadline, Duration::max() / kMaxInFlight) * kMaxInFlight;
  self->request(state.scorer, caf::duration{longest}, atom::score_v, std::move(request))
      .then([self, key](const RewardResult& result) { on_reply(self, key, result); },
            [self, key, id](const caf::error& error) {
              // The down handler reports the termination of the scorer once, for all samples.
              if (error != caf::sec::request_receiver_down) {
                on_reply(self, key, failed_result(id, from_caf_error(error).message()));
              }
            });
}

void send_more(Client self) {
  auto& state = self->state;
  while (!state.waiting.empty() && std::ssize(state.in_flight) < kMaxInFlight) {
    auto [key, request] = std::move(state.waiting.front());
    state.waiting.pop_front();
    send_request(self, key, std::move(request));
  }
  if (!state.in_flight.empty() && !state.wake_scheduled) {
    state.wake_scheduled = true;
    const auto due = state.in_flight.begin()->second.since + state.deadline;
    self->delayed_send(self, std::max(Duration{due - self->clock().now()}, Duration{0}),
                       atom::wake_v);
  }
}

// Fails the samples whose deadline has passed. They are the first ones, since `since` never
// decreases in the order of sending.
void expire(Client self) {
  auto& state = self->state;
  state.wake_scheduled = false;
  const auto now = self->clock().now();
  while (!state.in_flight.empty() &&
         now - state.in_flight.begin()->second.since >= state.deadline) {
    const auto [key, in_flight] = *state.in_flight.begin();
    state.in_flight.erase(state.in_flight.begin());
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(state.deadline).count();
    state.mailbox->put(
        key, failed_result(in_flight.id, "no reply within " + std::to_string(ms) + " ms"));
  }
  send_more(self);
}

caf::behavior scorer_client(Client self, std::shared_ptr<Mailbox> mailbox, ScorerActor scorer,
                            Duration deadline) {
  self->state.mailbox = std::move(mailbox);
  self->state.scorer = std::move(scorer);
  self->state.deadline = deadline;
  self->set_down_handler([self](const caf::down_msg& down) {
    auto& state = self->state;
    state.ended = true;
    state.waiting.clear();
    state.in_flight.clear();
    state.mailbox->end({Errc::kUnavailable, "the scorer: " + end_text(down.reason)});
  });
  self->monitor(self->state.scorer);
  return {[self](atom::score, std::uint64_t key, const RewardRequest& request) {
            if (!self->state.ended) {
              self->state.waiting.emplace_back(key, request);
              send_more(self);
            }
          },
          [self](atom::wake) { expire(self); }};
}

class ScorerEngine final : public engines::RewardEngine {
public:
  ScorerEngine(caf::actor_system& system, ScorerActor scorer, Duration deadline)
      : scorer_(std::move(scorer)),
        client_(system.spawn(scorer_client, mailbox_, scorer_, deadline)) {}
  ~ScorerEngine() override {
    caf::anon_send_exit(client_, caf::exit_reason::user_shutdown);
    caf::anon_send_exit(scorer_, caf::exit_reason::user_shutdown);
  }

  Status submit(RewardRequest request, RewardSink& sink) override {
    const std::uint64_t key = next_key_++;
    open_.emplace(key, Open{&sink, request.id});
    caf::anon_send(client_, atom::score_v, key, std::move(request));
    return {};
  }
  bool has_work() const override { return !open_.empty(); }
  Status step(Duration patience) override {
    std::vector<std::pair<std::uint64_t, RewardResult>> replies;
    Status ended;
    {
      std::unique_lock lock(mailbox_->mutex);
      mailbox_->changed.wait_for(
          lock, patience, [this] { return !mailbox_->replies.empty() || !mailbox_->ended.ok(); });
      replies.swap(mailbox_->replies);
      ended = mailbox_->ended;
    }
    for (auto& [key, result] : replies) {
      RewardSink* sink = open_.extract(key).mapped().sink;
      sink->on_reward(std::move(result));
    }
    // Replies are delivered first. The next step reports that the scorer has terminated.
    if (ended.ok() || !replies.empty()) {
      return {};
    }
    for (const auto& [key, open] : std::exchange(open_, {})) {
      RewardResult result;
      result.id = open.id;
      result.error = ended.message();
      open.sink->on_reward(std::move(result));
    }
    return ended;
  }

private:
  struct Open {
    RewardSink* sink = nullptr;
    SampleId id;
  };

  std::shared_ptr<Mailbox> mailbox_ = std::make_shared<Mailbox>();
  ScorerActor scorer_;
  caf::actor client_;
  std::map<std::uint64_t, Open> open_;  // the samples without a result, by key
  std::uint64_t next_key_ = 0;
};

}  // namespace

std::unique_ptr<engines::RewardEngine> make_scorer_engine(caf::actor_system& system,
                                                          ScorerActor scorer, Duration deadline) {
  return std::make_unique<ScorerEngine>(system, std::move(scorer), deadline);
}

}  // namespace tidemill::actors
