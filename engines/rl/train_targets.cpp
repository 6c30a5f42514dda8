// SPDX-License-Identifier: Apache-2.0
#include "engines/rl/train_targets.hpp"

#include <algorithm>
#include <string>

#include "engines/rl/refusal.hpp"

namespace tidemill::engines {

BatchCounts count_targets(std::span<const TrainSequence> sequences) {
  BatchCounts counts;
  for (const TrainSequence& sequence : sequences) {
    count_targets(sequence, counts);
  }
  return counts;
}

void count_targets(const TrainSequence& sequence, BatchCounts& counts) {
  std::int64_t targets = 0;
  for (std::size_t t = 1; t < sequence.response_mask.size(); ++t) {
    targets += sequence.response_mask[t] != 0 ? 1 : 0;
  }
  counts.tokens += targets;
  counts.seqs += targets > 0 ? 1 : 0;
  counts.rows += 1;
  counts.longest =
      std::max(counts.longest, static_cast<std::int64_t>(sequence.response_mask.size()));
}

Status read_targets(const TrainSequence& sequence, std::vector<std::uint8_t>& mask) {
  const std::string sample = " (sample " + std::to_string(sequence.id.value) + ")";
  if (sequence.response_mask.size() != sequence.ids.size()) {
    return refuse(kBadShape, "response_mask has " + std::to_string(sequence.response_mask.size()) +
                                 " values, expected " + std::to_string(sequence.ids.size()) +
                                 sample);
  }
  mask = sequence.response_mask;
  for (std::size_t t = 0; t < mask.size(); ++t) {
    if (mask[t] > 1) {
      return refuse(kBadMask,
                    "response_mask[" + std::to_string(t) + "] is neither 0 nor 1" + sample);
    }
  }
  if (!mask.empty()) {
    mask[0] = 0;
  }
  return {};
}

}  // namespace tidemill::engines
