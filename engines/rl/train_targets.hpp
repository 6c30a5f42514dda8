// SPDX-License-Identifier: Apache-2.0
// Finds and counts the targets of a training batch. The counts are the denominators of its losses.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "engines/rl/aggregate.hpp"
#include "engines/training_job.hpp"

namespace tidemill::engines {

/// Counts the targets of a whole batch and adds up their weights. Token 0 is never a target, even
/// if its mask is set, because no token precedes it to predict it from.
[[nodiscard]] BatchCounts count_targets(std::span<const TrainSequence> sequences);

/// Adds the targets of one sequence to `counts`.
void count_targets(const TrainSequence& sequence, BatchCounts& counts);

/// Returns the weight of token `t`: 1 if the sequence has no token weights.
[[nodiscard]] double weight_of(const TrainSequence& sequence, std::size_t t) noexcept;

/// Returns the sum of the weights of a sequence's targets. Requires that its token weights, if it
/// has any, and its mask are of the same length.
[[nodiscard]] double target_weight(const TrainSequence& sequence) noexcept;

/// Checks the token weights of a sequence, which may have none.
/// Errors: `bad_shape`, and `bad_weight` and `non_finite` for a target, naming the sample.
[[nodiscard]] Status check_weights(const TrainSequence& sequence);

/// Copies the sequence's mask to `mask`, with token 0 cleared.
/// Errors: `bad_mask` and `bad_shape` naming the sample.
[[nodiscard]] Status read_targets(const TrainSequence& sequence, std::vector<std::uint8_t>& mask);

}  // namespace tidemill::engines
