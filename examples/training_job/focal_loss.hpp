// SPDX-License-Identifier: Apache-2.0
// The program's own loss.
#pragma once

#include <cmath>
#include <cstddef>
#include <span>
#include <tidemill/base/status.hpp>
#include <tidemill/engines/training_job.hpp>

namespace training_job {

/// The mean over all targets of -(1 - p) log p, where p is the probability of the target. Targets
/// that the model already predicts count less than in cross-entropy.
/// Source: Lin et al. 2017, arXiv:1708.02002, with gamma = 1.
class FocalLoss final : public tidemill::engines::TokenLoss {
public:
  /// `num_targets` counts those of the whole minibatch, however the engine divides it.
  explicit FocalLoss(double num_targets) : num_targets_(num_targets) {}

  // A gradient depends on the log-probability of no other token.
  [[nodiscard]] bool is_token_local() const override { return true; }

  [[nodiscard]] tidemill::Status token_gradients(
      const tidemill::engines::LossTokens& tokens) override {
    for (std::size_t i = 0; i < tokens.logprobs.size(); ++i) {
      if (tokens.sequence->response_mask[tokens.first + i] == 1) {
        const double logprob = tokens.logprobs[i];
        const double p = std::exp(logprob);
        tokens.dlogprobs[i] = static_cast<float>((p * logprob - (1 - p)) / num_targets_);
      }
    }
    return {};
  }

  // Calls `token_gradients`, because both must write the same bits.
  [[nodiscard]] tidemill::Status evaluate(
      std::span<const tidemill::engines::LossSequence> sequences,
      tidemill::engines::LossSums& sums) override {
    for (const tidemill::engines::LossSequence& s : sequences) {
      TIDEMILL_RETURN_IF_ERROR(
          token_gradients({s.sequence, 0, s.logprobs, s.entropies, s.dlogprobs, s.dentropies}));
      for (std::size_t t = 0; t < s.logprobs.size(); ++t) {
        if (s.sequence->response_mask[t] == 1) {
          const double logprob = s.logprobs[t];
          sums["loss"] -= (1 - std::exp(logprob)) * logprob / num_targets_;
        }
      }
    }
    return {};
  }

private:
  double num_targets_;
};

}  // namespace training_job
