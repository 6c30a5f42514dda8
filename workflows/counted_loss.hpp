// SPDX-License-Identifier: Apache-2.0
// Counts the sequences of a minibatch as a device trains on them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "actors/device/messages.hpp"

namespace tidemill::workflows {

/// How much of its minibatch a run has trained on. Units: sequences.
/// Threads: safe to use concurrently. Reading both members is not atomic.
struct MinibatchProgress {
  std::atomic<std::uint64_t> done = 0;
  std::atomic<std::uint64_t> total = 0;
};

/// Returns a factory of the losses that `make_loss` makes. They give the same gradients, and count
/// each sequence in `progress` when its gradients have been computed. A new minibatch starts at 0.
[[nodiscard]] actors::LossFactory counted_losses(actors::LossFactory make_loss,
                                                 std::shared_ptr<MinibatchProgress> progress);

}  // namespace tidemill::workflows
