// SPDX-License-Identifier: Apache-2.0
// Finds and counts the targets of a training batch. The counts are the denominators of its losses.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "engines/rl/aggregate.hpp"
#include "engines/train_engine.hpp"

namespace tidemill::engines {

/// Counts the targets of a whole batch. Token 0 is never a target, even if its mask is set, because
/// no token precedes it to predict it from.
[[nodiscard]] BatchCounts count_targets(std::span<const TrainSequence> sequences);

/// Adds the targets of one sequence to `counts`.
void count_targets(const TrainSequence& sequence, BatchCounts& counts);

/// Copies the sequence's mask to `mask`, with token 0 cleared.
/// Errors: `bad_mask` and `bad_shape` naming the sample.
[[nodiscard]] Status read_targets(const TrainSequence& sequence, std::vector<std::uint8_t>& mask);

}  // namespace tidemill::engines
