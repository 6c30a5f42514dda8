// SPDX-License-Identifier: Apache-2.0
// Losses that are plain sums over tokens, without denominators, as clients of Tinker's API expect.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "engines/training_job.hpp"

namespace tidemill::engines {

/// The loss of one token with its log-probability l, the log-probability q under the policy that
/// sampled it, its advantage A, and the ratio r = exp(l - q). sg(x) is x as a constant: no gradient
/// flows through it. low and high are `ratio_low` and `ratio_high`.
///
/// Source: https://tinker-docs.thinkingmachines.ai/tinker/losses, and for the papers PPO
/// arXiv:1707.06347, CISPO 2506.13585, DRO 2405.19107, GSPO 2507.18071 (GSPO-token, section 4.3).
enum class TokenSumKind : std::uint8_t {
  kCrossEntropy,        // -w l, with the weight w, which may be negative
  kImportanceSampling,  // -r A
  kPpo,                 // -min(r A, clip(r, low, high) A)
  kCispo,               // -sg(clip(r, low, high)) l A
  kDro,                 // -(l A - beta / 2 (l - q)^2)
  /// As `kPpo` with the ratio s of the sequence in place of r: s = exp(mean of l - q over the
  /// tokens that the ratio mask marks). At each token, the gradient is that of sg(s) r / sg(r).
  kGspo,
};

/// Returns the kind of this name ("cross_entropy", "importance_sampling", "ppo", "cispo", "dro",
/// "gspo"), or nullopt.
[[nodiscard]] std::optional<TokenSumKind> token_sum_kind(std::string_view name) noexcept;

/// Configures a `TokenSumLoss`.
struct TokenSumOptions {
  TokenSumKind kind = TokenSumKind::kCrossEntropy;
  double ratio_low = 0.8;
  double ratio_high = 1.2;
  double beta = 0.05;  // of `kDro`
};

/// Returns the options of `kind` with its defaults. Those of `kPpo` and `kCispo` are 0.8 and 1.2.
/// Those of `kGspo` are 1 - 3e-4 and 1 + 4e-4, as in section 5.1 of its paper.
[[nodiscard]] TokenSumOptions default_options(TokenSumKind kind) noexcept;

/// Sums the losses of targets.
///
/// Unlike those of `PolicyTokenLoss` and `SftTokenLoss`, the losses are divided by nothing, ratios
/// are not clamped before the formula, and weights may be negative. The gradient of a batch
/// therefore does not depend on how it is cut into calls of `forward_backward`.
///
/// Columns: `advantages` holds A, or w for `kCrossEntropy`. `behavior_logprobs` holds q; all kinds
/// but `kCrossEntropy` read it. `token_weights` holds the ratio mask of `kGspo`, where any value
/// but 0 marks a token.
///
/// Sums: "loss", and over the targets "tokens".
class TokenSumLoss final : public TokenLoss {
public:
  /// Errors: `bad_option` (a bound of the ratio or `beta` is negative or not finite, `ratio_low`
  /// above `ratio_high`).
  [[nodiscard]] static Result<TokenSumLoss> create(const TokenSumOptions& options);

  /// Errors: `bad_shape`, `bad_mask`, `non_finite` naming the sample and the token,
  /// `non_finite_result` likewise; `bad_option` if the ratio mask of a sequence with a non-zero
  /// advantage marks no target.
  [[nodiscard]] Status evaluate(std::span<const LossSequence> sequences, LossSums& sums) override;

  /// Returns false for `kGspo`.
  [[nodiscard]] bool is_token_local() const override;
  /// Errors: as `evaluate`.
  [[nodiscard]] Status token_gradients(const LossTokens& tokens) override;

private:
  /// The loss of a token and its derivative by the token's log-probability.
  struct Term {
    double value = 0.0;
    double slope = 0.0;
  };

  explicit TokenSumLoss(const TokenSumOptions& options) : options_(options) {}

  Status evaluate_sequence(const LossSequence& current, LossSums& sums);
  [[nodiscard]] Status check_columns(const TrainSequence& sequence) const;
  [[nodiscard]] Result<double> sequence_log_ratio(const LossSequence& current) const;
  [[nodiscard]] Result<Term> term(const TrainSequence& sequence, std::size_t t, double logprob,
                                  double sequence_log_ratio) const;

  TokenSumOptions options_;
  std::vector<std::uint8_t> mask_;  // scratch: the mask of the current sequence
};

/// Returns the sums of `loss` at log-probabilities that `TrainingJob::forward` has computed.
/// `logprobs` has one row (T) for each sequence. Errors: those of `TokenSumLoss::evaluate`.
[[nodiscard]] Result<LossSums> evaluate_forward(TokenSumLoss& loss,
                                                std::span<const TrainSequence> sequences,
                                                std::span<const std::vector<float>> logprobs);

}  // namespace tidemill::engines
