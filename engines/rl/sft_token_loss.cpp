// SPDX-License-Identifier: Apache-2.0
#include "engines/rl/sft_token_loss.hpp"

#include <array>
#include <string>

#include "engines/rl/refusal.hpp"
#include "engines/rl/token_rows.hpp"
#include "engines/rl/train_targets.hpp"

namespace tidemill::engines {

Status SftTokenLoss::evaluate(std::span<const LossSequence> sequences, LossSums& sums) {
  for (const LossSequence& current : sequences) {
    TIDEMILL_RETURN_IF_ERROR(evaluate_sequence(current, sums));
  }
  return {};
}

Status SftTokenLoss::evaluate_sequence(const LossSequence& current, LossSums& sums) {
  const SampleId id = current.sequence->id;
  TIDEMILL_RETURN_IF_ERROR(read_targets(*current.sequence, mask_));
  TIDEMILL_RETURN_IF_ERROR(check_weights(*current.sequence));
  if (current.logprobs.size() != mask_.size() || current.dlogprobs.size() != mask_.size()) {
    return refuse(kBadShape, "logprobs and dlogprobs must have " + std::to_string(mask_.size()) +
                                 " values (sample " + std::to_string(id.value) + ")");
  }
  const std::array<std::size_t, 2> offsets = {0, mask_.size()};
  TIDEMILL_RETURN_IF_ERROR(
      check_token_column<float>({offsets, mask_, {&id, 1}}, "logprobs", current.logprobs));
  double logprobs = 0.0;
  double entropy = 0.0;
  std::int64_t targets = 0;
  for (std::size_t t = 0; t < mask_.size(); ++t) {
    if (mask_[t] == 0) {
      continue;
    }
    if (total_targets_ < 1) {
      return refuse(kBadOption, "sample " + std::to_string(id.value) +
                                    " has targets, but the loss was created for none");
    }
    ++targets;
    const double weight = weight_of(*current.sequence, t);
    logprobs += weight * static_cast<double>(current.logprobs[t]);
    entropy += current.entropies.empty() ? 0.0 : static_cast<double>(current.entropies[t]);
    current.dlogprobs[t] = gradient(*current.sequence, t);
  }
  sums["loss"] -= targets == 0 || total_weight_ == 0.0 ? 0.0 : logprobs / total_weight_;
  sums["tokens"] += static_cast<double>(targets);
  if (!current.entropies.empty()) {
    sums["entropy_sum"] += entropy;
  }
  return {};
}

float SftTokenLoss::gradient(const TrainSequence& sequence, std::size_t t) const {
  return total_weight_ == 0.0 ? 0.0F : static_cast<float>(-weight_of(sequence, t) / total_weight_);
}

Status SftTokenLoss::token_gradients(const LossTokens& tokens) {
  TIDEMILL_RETURN_IF_ERROR(read_targets(*tokens.sequence, mask_));
  TIDEMILL_RETURN_IF_ERROR(check_weights(*tokens.sequence));
  for (std::size_t i = 0; i < tokens.dlogprobs.size(); ++i) {
    if (mask_[tokens.first + i] != 0) {
      tokens.dlogprobs[i] = gradient(*tokens.sequence, tokens.first + i);
    }
  }
  return {};
}

}  // namespace tidemill::engines
