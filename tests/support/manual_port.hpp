// SPDX-License-Identifier: Apache-2.0
// A port whose work runs when a test says so.
#pragma once

#include <deque>
#include <utility>

#include <caf/all.hpp>

#include "actors/work/work_port.hpp"

namespace tidemill::test {

/// Keeps work, in order, until the test runs it.
class ManualPort final : public actors::WorkPort {
public:
  void run(Work work, caf::strong_actor_ptr receiver, caf::message done) override {
    held_.push_back({std::move(work), std::move(receiver), std::move(done)});
  }
  /// Returns how many pieces of work have not run.
  [[nodiscard]] std::size_t size() const { return held_.size(); }
  /// Runs the oldest piece of work and sends its message. Requires that there is one.
  void run_next() {
    Held next = std::move(held_.front());
    held_.pop_front();
    static_cast<void>(next.work());
    caf::anon_send(caf::actor_cast<caf::actor>(next.receiver), std::move(next.done));
  }

private:
  struct Held {
    Work work;
    caf::strong_actor_ptr receiver;
    caf::message done;
  };
  std::deque<Held> held_;
};

}  // namespace tidemill::test
