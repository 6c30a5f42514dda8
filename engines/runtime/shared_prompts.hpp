// SPDX-License-Identifier: Apache-2.0
// Which sequences of a training batch begin with the same prompt.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engines/train_engine.hpp"

namespace tidemill::engines {

/// The prompt that a sequence has in common with its neighbours, but for its last token, whose row
/// predicts the sequence's own first target.
struct SharedPrompt {
  std::int64_t num_tokens = 0;  // 0: nothing is shared
  bool last = true;             // the next sequence does not share it
};

/// Returns what each of `sequences` shares with those beside it: runs of two or more with the same
/// prompt, of at least two tokens, share it. It depends on `sequences` alone.
[[nodiscard]] std::vector<SharedPrompt> find_shared_prompts(
    std::span<const TrainSequence* const> sequences);

}  // namespace tidemill::engines
