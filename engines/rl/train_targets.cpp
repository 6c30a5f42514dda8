// SPDX-License-Identifier: Apache-2.0
#include "engines/rl/train_targets.hpp"

#include <algorithm>
#include <cmath>
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
  // A sequence whose weights do not fit its mask is refused when its loss is evaluated.
  const bool weighted = sequence.token_weights.size() == sequence.response_mask.size();
  counts.weight = counts.weight.value_or(0.0) +
                  (weighted ? target_weight(sequence) : static_cast<double>(targets));
  counts.longest =
      std::max(counts.longest, static_cast<std::int64_t>(sequence.response_mask.size()));
}

double weight_of(const TrainSequence& sequence, std::size_t t) noexcept {
  return sequence.token_weights.empty() ? 1.0 : static_cast<double>(sequence.token_weights[t]);
}

double target_weight(const TrainSequence& sequence) noexcept {
  double weight = 0.0;
  for (std::size_t t = 1; t < sequence.response_mask.size(); ++t) {
    weight += sequence.response_mask[t] != 0 ? weight_of(sequence, t) : 0.0;
  }
  return weight;
}

Status check_weights(const TrainSequence& sequence) {
  const std::vector<float>& weights = sequence.token_weights;
  const std::string sample = " (sample " + std::to_string(sequence.id.value) + ")";
  if (!weights.empty() && weights.size() != sequence.response_mask.size()) {
    return refuse(kBadShape, "token_weights has " + std::to_string(weights.size()) +
                                 " values, expected " +
                                 std::to_string(sequence.response_mask.size()) + sample);
  }
  for (std::size_t t = 1; t < weights.size(); ++t) {
    if (sequence.response_mask[t] == 0) {
      continue;
    }
    const auto is = [t] { return "token_weights[" + std::to_string(t) + "] is "; };
    if (!std::isfinite(weights[t])) {
      return refuse(kNonFinite, is() + "not finite" + sample);
    }
    if (weights[t] < 0.0F) {
      return refuse(kBadWeight, is() + "negative" + sample);
    }
  }
  return {};
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
