// SPDX-License-Identifier: Apache-2.0
// The fixture for tests of one actor: CAF's single-threaded test scheduler and virtual time.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <caf/all.hpp>
#include <caf/detail/test_actor_clock.hpp>
#include <caf/scheduler/test_coordinator.hpp>
#include <gtest/gtest.h>

#include "actors/atoms.hpp"
#include "actors/errors.hpp"
#include "actors/type_ids.hpp"
#include "actors/work/work_port.hpp"
#include "base/clock.hpp"
#include "base/result.hpp"

namespace tidemill::test {

/// The reply to a request. It is empty until the reply arrives.
template <class Value>
class Reply {
public:
  [[nodiscard]] bool arrived() const { return slot_->has_value(); }
  [[nodiscard]] bool ok() const { return arrived() && (*slot_)->ok(); }
  /// Returns the reply's value. Requires `ok()`.
  [[nodiscard]] const Value& value() const { return (*slot_)->value(); }
  /// Returns the status of the request, or `kTimeout` while no reply has arrived.
  [[nodiscard]] Status status() const {
    return arrived() ? (*slot_)->status() : Status(Errc::kTimeout, "no reply yet");
  }
  /// Returns how many replies have arrived. More than 1 means that a promise was settled twice.
  [[nodiscard]] int count() const { return *count_; }

  void settle(Result<Value> result) const {
    ++*count_;
    slot_->emplace(std::move(result));
  }

private:
  std::shared_ptr<std::optional<Result<Value>>> slot_ =
      std::make_shared<std::optional<Result<Value>>>();
  std::shared_ptr<int> count_ = std::make_shared<int>(0);
};

/// Runs actors message by message, in order of arrival, on virtual time.
///
/// Work that is submitted to `port()` runs immediately. Its message arrives when time passes.
class ActorTest : public ::testing::Test {
protected:
  ActorTest() : port_(actors::make_simulated_work_port(system_, [] { return Duration{0}; })) {}
  // Running actors and undelivered messages would make ~actor_system() wait forever, so both are
  // cleared here. A destructor would be too late, because the actors call back into members of the
  // derived fixture.
  void TearDown() override {
    for (const caf::actor& actor : kept_) {
      caf::anon_send_exit(actor, caf::exit_reason::kill);
    }
    kept_.clear();
    client_ = nullptr;
    drain();
  }

  caf::actor_system& system() { return system_; }
  actors::WorkPort& port() { return *port_; }

  /// Delivers messages until all mailboxes are empty. Time does not advance.
  void drain() {
    while (scheduler().try_run_once()) {
    }
  }
  /// Advances the time by `by`, fires the timeouts that are due, in order, and delivers the
  /// messages that result.
  void advance(Duration by) {
    drain();
    scheduler().advance_time(by);
    drain();
  }
  /// Triggers timeouts one after another until `done()` is true. Returns false if it is still false
  /// after `limit` timeouts, or if none is pending.
  template <class Done>
  bool run_until(Done done, int limit = 10'000) {
    for (drain(); !done(); drain()) {
      if (limit-- == 0 || !scheduler().trigger_timeout()) {
        return false;
      }
    }
    return true;
  }
  /// Returns how many timers are set that are due within `horizon`; those of `ask` are later.
  [[nodiscard]] std::size_t num_timers(Duration horizon = std::chrono::hours(50)) {
    const auto& timers = dynamic_cast<caf::detail::test_actor_clock&>(system_.clock()).schedule();
    return static_cast<std::size_t>(
        std::distance(timers.begin(), timers.upper_bound(now() + horizon)));
  }
  [[nodiscard]] TimePoint now() { return system_.clock().now(); }

  /// Kills the actor at the end of the test.
  template <class Handle>
  Handle keep(const Handle& handle) {
    kept_.push_back(caf::actor_cast<caf::actor>(handle));
    return handle;
  }

  /// Sends a request with a deadline of a hundred hours. The reply arrives once messages are
  /// delivered. One actor sends the requests of a test, so a stream sees one consumer.
  template <class Value, class Handle, class... Ts>
  Reply<Value> ask(const Handle& handle, Ts... message) {
    Reply<Value> reply;
    requests_->push_back([reply, handle, message...](caf::event_based_actor* self) {
      self->request(handle, Duration(std::chrono::hours(100)), message...)
          .then([reply](const Value& value) { reply.settle(value); },
                [reply](const caf::error& error) { reply.settle(actors::from_caf_error(error)); });
    });
    if (!client_) {
      client_ = keep(system_.spawn([requests = requests_](caf::event_based_actor* self) {
        return caf::behavior{[self, requests](atom::wake) {
          const Request request = std::move(requests->front());
          requests->pop_front();
          request(self);
        }};
      }));
    }
    caf::anon_send(client_, atom::wake_v);
    return reply;
  }

  /// Returns the exit status of an actor. It is empty while the actor runs, and `ok()` if the actor
  /// ended normally.
  template <class Handle>
  std::shared_ptr<std::optional<Status>> exit_of(const Handle& handle) {
    auto exit = std::make_shared<std::optional<Status>>();
    keep(system_.spawn([exit, handle](caf::event_based_actor* self) {
      self->set_down_handler([self, exit](const caf::down_msg& down) {
        *exit = actors::from_caf_error(down.reason);
        self->quit();
      });
      self->monitor(handle);
      return caf::behavior{[](caf::unit_t) {}};
    }));
    drain();
    return exit;
  }

  template <class Handle>
  void kill(const Handle& handle) {
    caf::anon_send_exit(handle, caf::exit_reason::kill);
    drain();
  }

private:
  using Request = std::function<void(caf::event_based_actor*)>;

  static caf::actor_system_config& configure(caf::actor_system_config& config) {
    actors::add_message_types(config);
    config.set("scheduler.policy", caf::atom("testing"));
    return config;
  }
  caf::scheduler::test_coordinator& scheduler() {
    return dynamic_cast<caf::scheduler::test_coordinator&>(system_.scheduler());
  }

  caf::actor_system_config config_;
  caf::actor_system system_{configure(config_)};
  std::unique_ptr<actors::WorkPort> port_;
  std::vector<caf::actor> kept_;
  caf::actor client_;  // that sends the requests of `ask`
  std::shared_ptr<std::deque<Request>> requests_ = std::make_shared<std::deque<Request>>();
};

}  // namespace tidemill::test
