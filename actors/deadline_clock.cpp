// SPDX-License-Identifier: Apache-2.0
#include "actors/deadline_clock.hpp"

#include <thread>
#include <vector>

#include <caf/all.hpp>
#include <caf/policy/work_sharing.hpp>
#include <caf/scheduler/coordinator.hpp>

namespace tidemill::actors {
namespace {

caf::strong_actor_ptr handle_of(caf::abstract_actor* actor) {
  return caf::actor_cast<caf::strong_actor_ptr>(actor);
}

}  // namespace

DeadlineClock::Events::node_type DeadlineClock::take(Events::iterator it) {
  by_time_.erase({it->second.time, it->first});
  return events_.extract(it);
}

// Replaces an event that has the same key.
void DeadlineClock::add(Key key, Event added) {
  Events::node_type replaced;
  bool is_first = false;
  {
    const std::lock_guard lock(mutex_);
    if (key.kind == Kind::kMulti || key.actor == nullptr) {
      key.number = ++last_number_;
    } else if (const auto it = events_.find(key); it != events_.end()) {
      replaced = take(it);
    }
    const auto place = by_time_.emplace(added.time, key).first;
    is_first = place == by_time_.begin();
    events_.emplace(key, std::move(added));
  }
  if (is_first) {
    changed_.notify_one();
  }
}

void DeadlineClock::cancel(const Key& key) {
  Events::node_type cancelled;
  const std::lock_guard lock(mutex_);
  if (const auto it = events_.find(key); it != events_.end()) {
    cancelled = take(it);
  }
}

void DeadlineClock::set_ordinary_timeout(time_point time, caf::abstract_actor* self,
                                         caf::atom_value type, std::uint64_t id) {
  add({self, Kind::kOrdinary, static_cast<std::uint64_t>(type)},
      {.time = time, .actor = handle_of(self), .type = type, .id = id});
}

void DeadlineClock::set_multi_timeout(time_point time, caf::abstract_actor* self,
                                      caf::atom_value type, std::uint64_t id) {
  add({self, Kind::kMulti}, {.time = time, .actor = handle_of(self), .type = type, .id = id});
}

void DeadlineClock::set_request_timeout(time_point time, caf::abstract_actor* self,
                                        caf::message_id request) {
  add({self, Kind::kRequest, request.integer_value()},
      {.time = time, .actor = handle_of(self), .request = request});
}

void DeadlineClock::schedule_message(time_point time, caf::strong_actor_ptr receiver,
                                     caf::mailbox_element_ptr content) {
  add({nullptr, Kind::kMessage},
      {.time = time, .actor = std::move(receiver), .content = std::move(content)});
}

void DeadlineClock::schedule_message(time_point time, caf::group target,
                                     caf::strong_actor_ptr sender, caf::message content) {
  add({nullptr, Kind::kGroupMessage}, {.time = time,
                                       .actor = std::move(sender),
                                       .target = std::move(target),
                                       .message = std::move(content)});
}

void DeadlineClock::cancel_ordinary_timeout(caf::abstract_actor* self, caf::atom_value type) {
  cancel({self, Kind::kOrdinary, static_cast<std::uint64_t>(type)});
}

void DeadlineClock::cancel_request_timeout(caf::abstract_actor* self, caf::message_id request) {
  cancel({self, Kind::kRequest, request.integer_value()});
}

void DeadlineClock::cancel_timeouts(caf::abstract_actor* self) {
  std::vector<Events::node_type> cancelled;
  const std::lock_guard lock(mutex_);
  auto it = events_.lower_bound({self, Kind::kRequest, 0});
  while (it != events_.end() && it->first.actor == self) {
    cancelled.push_back(take(it++));
  }
}

void DeadlineClock::cancel_all() {
  Events cancelled;
  const std::lock_guard lock(mutex_);
  by_time_.clear();
  cancelled.swap(events_);
}

void DeadlineClock::send(Kind kind, Event& due) {
  switch (kind) {
    case Kind::kRequest:
      due.actor->get()->eq_impl(due.request, due.actor, nullptr,
                                caf::make_error(caf::sec::request_timeout));
      return;
    case Kind::kOrdinary:
    case Kind::kMulti:
      due.actor->get()->eq_impl(caf::make_message_id(), due.actor, nullptr,
                                caf::timeout_msg{due.type, due.id});
      return;
    case Kind::kMessage: due.actor->enqueue(std::move(due.content), nullptr); return;
    case Kind::kGroupMessage:
      due.target->eq_impl(caf::make_message_id(), std::move(due.actor), nullptr,
                          std::move(due.message));
      return;
  }
}

void DeadlineClock::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (by_time_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const auto [time, key] = *by_time_.begin();
    if (time > now()) {
      changed_.wait_until(lock, time);
      continue;
    }
    Events::node_type due = take(events_.find(key));
    lock.unlock();
    send(key.kind, due.mapped());
    due = {};
    lock.lock();
  }
}

void DeadlineClock::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  cancel_all();
}

std::size_t DeadlineClock::num_pending() const {
  const std::lock_guard lock(mutex_);
  return events_.size();
}

namespace {

// CAF's scheduler with another clock, whose thread it starts and ends. The thread of CAF's clock
// sleeps.
class DeadlineScheduler final : public caf::scheduler::coordinator<caf::policy::work_sharing> {
public:
  using coordinator::coordinator;

  DeadlineClock& clock() noexcept override { return clock_; }

protected:
  void start() override {
    coordinator::start();
    thread_ = std::thread([this] {
      caf::detail::set_thread_name("deadlines");
      system().thread_started();
      clock_.run();
      system().thread_terminates();
    });
  }
  void stop() override {
    coordinator::stop();
    clock_.stop();
    thread_.join();
  }

private:
  DeadlineClock clock_;
  std::thread thread_;
};

}  // namespace

void use_deadline_clock(caf::actor_system_config& config) {
  config.module_factories.emplace_back([](caf::actor_system& system) -> caf::actor_system::module* {
    return new DeadlineScheduler(system);
  });
}

}  // namespace tidemill::actors
