// SPDX-License-Identifier: Apache-2.0
// Counts the sequences of a minibatch as a device trains on them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "actors/device/messages.hpp"

namespace tidemill::workflows {

/// How much of its minibatch a run has trained on. Units: sequences.
/// Threads: safe to use concurrently. The two numbers are not read at one time.
struct MinibatchShare {
  std::atomic<std::uint64_t> done = 0;
  std::atomic<std::uint64_t> total = 0;
};

/// Returns a factory of the losses that `make_loss` makes. They give the same gradients, and count
/// each sequence in `share` when its gradients have been computed. A new minibatch starts at 0.
[[nodiscard]] actors::LossFactory counted_losses(actors::LossFactory make_loss,
                                                 std::shared_ptr<MinibatchShare> share);

}  // namespace tidemill::workflows
