// SPDX-License-Identifier: Apache-2.0
// The port for simulated runs. It has no thread and uses virtual time.
#include <algorithm>
#include <utility>

#include <caf/all.hpp>

#include "actors/work/work_port.hpp"

namespace tidemill::actors {
namespace {

class SimulatedWorkPort final : public WorkPort {
public:
  SimulatedWorkPort(caf::actor_system& system, std::function<Duration()> latency)
      : system_(system), latency_(std::move(latency)) {}

  void run(Work work, caf::strong_actor_ptr receiver, caf::message done) override {
    if (receiver == nullptr) {
      static_cast<void>(work());
      return;
    }
    auto& clock = system_.clock();
    // One piece at a time: work starts when the work before it has ended.
    const TimePoint start = std::max(TimePoint(clock.now()), busy_until_);
    busy_until_ = start + work() + latency_();
    clock.schedule_message(
        busy_until_, std::move(receiver),
        caf::make_mailbox_element(nullptr, caf::make_message_id(), {}, std::move(done)));
  }

private:
  caf::actor_system& system_;
  std::function<Duration()> latency_;
  TimePoint busy_until_{};
};

}  // namespace

std::unique_ptr<WorkPort> make_simulated_work_port(caf::actor_system& system,
                                                   std::function<Duration()> latency) {
  return std::make_unique<SimulatedWorkPort>(system, std::move(latency));
}

}  // namespace tidemill::actors
