// SPDX-License-Identifier: Apache-2.0
// Chooses the next token: filters, probabilities, and one random number.
//
// The choice is a function of the logits, the options, the tokens so far, and the key of the draw:
// nothing else that shares a batch can change it. Arithmetic is plain IEEE float and double without
// calls into the C library's exp, so that machines agree wherever their logits do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.hpp"
#include "base/result.hpp"
#include "engines/sampling/sampling_options.hpp"

namespace tidemill::engines {

/// Checks ranges, and that biased tokens lie in a vocabulary of `vocabulary` tokens.
/// Errors: `kInvalidArgument` naming the option.
[[nodiscard]] Status validate(const SamplingOptions& options, std::int64_t vocabulary);

/// The tokens of a sequence so far; penalties look at them.
struct TokenHistory {
  std::span<const std::int32_t> prompt_ids;
  std::span<const std::int32_t> output_ids;
};

/// Names one draw: the same key gives the same random number.
struct DrawKey {
  std::uint64_t seed = 0;
  SampleId sample;
  std::uint64_t position = 0;  // of the token to be drawn, in its sequence
};

/// Draws tokens from logits.
///
/// Order of steps: logit bias; repetition penalty over prompt and output; frequency and presence
/// penalties over the output; temperature; top-k (ties with the k-th stay); top-p (ascending
/// cumulative mass of what top-k left, dropped while at most 1 - top_p, of equal tokens the first
/// one first; the best stays); min-p.
/// Hugging Face's order. Temperature 0 takes the first largest logit after the penalties.
/// Options are taken to be valid. Logits of minus infinity are tokens that cannot be drawn.
/// Threads: an object holds scratch memory for one call at a time; results do not depend on it.
class Sampler {
public:
  /// Draws by inverse cumulative mass over the kept tokens in token order.
  /// Errors: `kInvalidArgument` (a token of `history` outside the vocabulary), `kInternal` naming
  /// the sample (a logit is NaN or infinity, or all are minus infinity).
  [[nodiscard]] Result<std::int32_t> draw(std::span<const float> logits,
                                          const SamplingOptions& options,
                                          const TokenHistory& history, const DrawKey& key);

  /// As `draw`, by a number `uniform` in [0, 1).
  [[nodiscard]] Result<std::int32_t> draw_by(std::span<const float> logits,
                                             const SamplingOptions& options,
                                             const TokenHistory& history, double uniform);

  /// Writes the probabilities that `draw` draws from and returns the number of tokens kept. Dropped
  /// tokens have exactly 0; so have kept ones below the normal floats, which are never drawn.
  /// Shapes: `logits` (V), `probabilities` (V).
  /// Errors: as `draw`.
  [[nodiscard]] Result<std::int64_t> distribution(std::span<const float> logits,
                                                  const SamplingOptions& options,
                                                  const TokenHistory& history,
                                                  std::span<float> probabilities);

private:
  /// Fills `weights_` and `block_sums_`, or sets `greedy_`.
  Status weigh(std::span<const float> logits, const SamplingOptions& options,
               const TokenHistory& history);
  Status adjust(std::span<const float> logits, const SamplingOptions& options,
                const TokenHistory& history);
  void penalize(const SamplingOptions& options, const TokenHistory& history);
  void drop(std::size_t token);
  void keep_top_k(std::int32_t k);
  void keep_top_p(float top_p);

  std::vector<double> adjusted_;      // (V) logits after bias and penalties; -inf: dropped
  std::vector<float> weights_;        // (V) softmax without its division; 0: dropped
  std::vector<double> block_sums_;    // of weights
  std::vector<double> largest_;       // (V) scratch of top-k
  std::vector<std::int32_t> order_;   // tokens, as far ordered as top-p needs
  std::vector<std::int32_t> counts_;  // (V) occurrences in the output; 0 between calls
  std::vector<std::uint8_t> seen_;    // (V) occurs in prompt or output; 0 between calls
  std::int32_t greedy_ = -1;          // the token, at temperature 0
  bool plain_ = false;                // no bias, penalty or filter: `adjusted_` is not used
};

}  // namespace tidemill::engines
