// SPDX-License-Identifier: Apache-2.0
// A port that tells whether its work runs, and weights that report where they are freed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <caf/all.hpp>

#include "actors/work/work_port.hpp"
#include "engines/snapshot.hpp"

namespace tidemill::test {

/// Passes all work to another port.
class WatchedWorkPort final : public actors::WorkPort {
public:
  /// `inner` must outlive this port.
  explicit WatchedWorkPort(actors::WorkPort& inner) : inner_(inner) {}
  void run(Work work, caf::strong_actor_ptr receiver, caf::message done) override {
    inner_.run(
        [this, work = std::move(work)] {
          in_work_ = true;
          const Duration taken = work();
          in_work_ = false;
          return taken;
        },
        std::move(receiver), std::move(done));
  }
  /// Returns whether a piece of work is running.
  [[nodiscard]] bool in_work() const { return in_work_; }

private:
  actors::WorkPort& inner_;
  bool in_work_ = false;
};

/// The steps whose weights were freed, in order, by where that happened.
struct FreedWeights {
  std::vector<std::uint64_t> at_port;
  std::vector<std::uint64_t> elsewhere;
};

/// Returns weights that are recorded in `freed` when their last handle is gone. `port` must outlive
/// them.
inline engines::Snapshot watched_weights(const PolicyVersion& version, const WatchedWorkPort& port,
                                         const std::shared_ptr<FreedWeights>& freed) {
  engines::Snapshot weights;
  weights.version = version;
  weights.base_digest = "step " + std::to_string(version.step);
  const std::shared_ptr<const void> owner(
      freed.get(), [freed, &port, step = version.step](const void*) {
        (port.in_work() ? freed->at_port : freed->elsewhere).push_back(step);
      });
  weights.base["w"] = {DType::kU8, {0}, Buffer::wrap(owner, {}, DType::kU8)};
  return weights;
}

}  // namespace tidemill::test
