// SPDX-License-Identifier: Apache-2.0
#include "engines/runtime/shared_prompts.hpp"

#include <algorithm>

namespace tidemill::engines {
namespace {

// Returns the tokens before the one whose row predicts the first target. Empty if there is no
// target or no such token.
std::span<const std::int32_t> prefix_of(const TrainSequence& sequence) {
  const auto& mask = sequence.response_mask;
  for (std::size_t t = 1; t < mask.size(); ++t) {
    if (mask[t] != 0) {
      return std::span(sequence.ids).first(t - 1);
    }
  }
  return {};
}

}  // namespace

std::vector<SharedPrompt> find_shared_prompts(std::span<const TrainSequence* const> sequences) {
  std::vector<SharedPrompt> shared(sequences.size());
  for (std::size_t i = 0; i + 1 < sequences.size(); ++i) {
    const auto prefix = prefix_of(*sequences[i]);
    if (!prefix.empty() && std::ranges::equal(prefix, prefix_of(*sequences[i + 1]))) {
      const auto count = static_cast<std::int64_t>(prefix.size());
      shared[i] = {count, false};
      shared[i + 1] = {count, true};
    }
  }
  return shared;
}

}  // namespace tidemill::engines
