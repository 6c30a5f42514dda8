// SPDX-License-Identifier: Apache-2.0
// One actor under test: CAF's single-threaded scheduler, virtual time, no surprises.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <caf/all.hpp>
#include <caf/scheduler/test_coordinator.hpp>
#include <gtest/gtest.h>

#include "actors/errors.hpp"
#include "actors/type_ids.hpp"
#include "actors/work/work_port.hpp"
#include "base/clock.hpp"
#include "base/result.hpp"

namespace tidemill::test {

/// The answer to a request, once it has come.
template <class Answer>
class Asked {
public:
  [[nodiscard]] bool answered() const { return slot_->has_value(); }
  [[nodiscard]] bool ok() const { return answered() && (*slot_)->ok(); }
  /// Returns the answer. Requires `ok()`.
  [[nodiscard]] const Answer& value() const { return (*slot_)->value(); }
  /// Returns how the request failed; `kTimeout` stands for "not answered yet".
  [[nodiscard]] Status status() const {
    return answered() ? (*slot_)->status() : Status(Errc::kTimeout, "not answered yet");
  }
  /// Returns how often an answer came: 1, or a promise was settled twice.
  [[nodiscard]] int count() const { return *count_; }

  void settle(Result<Answer> result) const {
    ++*count_;
    slot_->emplace(std::move(result));
  }

private:
  std::shared_ptr<std::optional<Result<Answer>>> slot_ =
      std::make_shared<std::optional<Result<Answer>>>();
  std::shared_ptr<int> count_ = std::make_shared<int>(0);
};

/// Runs actors message by message, in order of arrival, on virtual time.
///
/// Work at `port()` runs at submission; its message comes when time passes.
class ActorTest : public ::testing::Test {
protected:
  ActorTest() : port_(actors::make_simulated_work_port(system_, [] { return Duration{0}; })) {}
  // Actors that live, or messages on their way, would keep ~actor_system() waiting for ever. Not in
  // the destructor: what the actors call back lives in the derived test.
  void TearDown() override {
    for (const caf::actor& actor : kept_) {
      caf::anon_send_exit(actor, caf::exit_reason::kill);
    }
    kept_.clear();
    drain();
  }

  caf::actor_system& system() { return system_; }
  actors::WorkPort& port() { return *port_; }

  /// Delivers messages until all mailboxes are empty. Time stands still.
  void drain() {
    while (scheduler().try_run_once()) {
    }
  }
  /// Lets `by` pass, firing what is due in its order, and delivers what follows from it.
  void advance(Duration by) {
    drain();
    scheduler().advance_time(by);
    drain();
  }
  /// Goes from timeout to timeout until `done`. Returns false after `limit` of them without it.
  template <class Done>
  bool run_until(Done done, int limit = 10'000) {
    for (drain(); !done(); drain()) {
      if (limit-- == 0 || !scheduler().trigger_timeout()) {
        return false;
      }
    }
    return true;
  }
  [[nodiscard]] TimePoint now() { return system_.clock().now(); }

  /// Ends the actor with the test.
  template <class Handle>
  Handle keep(const Handle& handle) {
    kept_.push_back(caf::actor_cast<caf::actor>(handle));
    return handle;
  }

  /// Sends a request that has a hundred hours; its answer appears once messages are delivered.
  template <class Answer, class Handle, class... Ts>
  Asked<Answer> ask(const Handle& handle, Ts... message) {
    Asked<Answer> asked;
    keep(system_.spawn([asked, handle, message...](caf::event_based_actor* self) {
      self->request(handle, Duration(std::chrono::hours(100)), message...)
          .then([asked](const Answer& answer) { asked.settle(answer); },
                [asked](const caf::error& error) { asked.settle(actors::from_caf_error(error)); });
    }));
    return asked;
  }

  /// Watches an actor's end: empty while it lives, else why it ended (`ok()`: normally).
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
};

}  // namespace tidemill::test
