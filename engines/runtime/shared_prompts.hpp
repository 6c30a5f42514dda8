// SPDX-License-Identifier: Apache-2.0
// Finds sequences of a training batch that begin with the same prompt.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engines/training_job.hpp"

namespace tidemill::engines {

/// The part of its prompt that a sequence shares with its neighbors. It excludes the last token of
/// the prompt, because the row of that token predicts the sequence's own first target.
struct SharedPrompt {
  std::int64_t num_tokens = 0;  // 0 if nothing is shared
  bool last = true;             // true if the next sequence does not share it
};

/// Returns what each of `sequences` shares with its neighbors. Two or more consecutive sequences
/// with the same prompt of at least two tokens share it. The result depends only on `sequences`.
[[nodiscard]] std::vector<SharedPrompt> find_shared_prompts(
    std::span<const TrainSequence* const> sequences);

}  // namespace tidemill::engines
