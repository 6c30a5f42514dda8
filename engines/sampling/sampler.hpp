// SPDX-License-Identifier: Apache-2.0
// Samples the next token from logits.
//
// The choice is a function of the logits, the options, the previous tokens and the sampling key. It
// does not depend on other sequences of the batch. The arithmetic uses only IEEE float and double
// operations, and not exp of the C library, so that equal logits give equal tokens on all machines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.hpp"
#include "base/result.hpp"
#include "engines/sampling/sampling_options.hpp"

namespace tidemill::engines {

/// Checks that the options are in range, and that biased tokens are below `vocabulary`.
/// Errors: `kInvalidArgument` naming the option.
[[nodiscard]] Status validate(const SamplingOptions& options, std::int64_t vocabulary);

/// Samples tokens from logits.
///
/// The steps, in Hugging Face's order:
///
/// 1. Logit bias.
/// 2. Repetition penalty over prompt and response.
/// 3. Frequency and presence penalties over the response.
/// 4. Temperature. At temperature 0, the first of the largest logits is chosen, and no filter acts.
/// 5. Top-k. Tokens that tie with the k-th are kept.
/// 6. Top-p. Of the remaining tokens, the least probable are dropped while their cumulative mass is
///    at most 1 - top_p. Of equally probable tokens, the one with the lowest id is dropped first.
///    The most probable token is always kept.
/// 7. Min-p.
///
/// Requires valid options. A token whose logit is minus infinity is never sampled.
/// Threads: one call at a time, since the object holds scratch memory. Results do not depend on it.
class Sampler {
public:
  /// Samples a token by inverting the cumulative mass of the kept tokens in token order.
  /// Errors: `kInvalidArgument` (a token of `history` is outside the vocabulary), `kInternal`
  /// naming the sample (a logit is NaN or infinity, or all are minus infinity).
  [[nodiscard]] Result<std::int32_t> sample(std::span<const float> logits,
                                            const SamplingOptions& options,
                                            const TokenHistory& history, const SamplingKey& key);

  /// Samples like `sample`, but with the random number `uniform` in [0, 1). Errors do not name the
  /// sample.
  [[nodiscard]] Result<std::int32_t> sample_with(std::span<const float> logits,
                                                 const SamplingOptions& options,
                                                 const TokenHistory& history, double uniform);

  /// Writes the probabilities with which `sample` chooses tokens, and returns the number of tokens
  /// kept. Dropped tokens have probability exactly 0. So do kept tokens whose weight is below the
  /// normal floats, which are never sampled.
  /// Shapes: `logits` (V), `probabilities` (V).
  /// Errors: those of `sample_with`; `kInvalidArgument` if the sizes differ.
  [[nodiscard]] Result<std::int64_t> distribution(std::span<const float> logits,
                                                  const SamplingOptions& options,
                                                  const TokenHistory& history,
                                                  std::span<float> probabilities);

private:
  /// Computes `weights_` and `block_sums_`, or sets `greedy_`.
  Status weigh(std::span<const float> logits, const SamplingOptions& options,
               const TokenHistory& history);
  Status adjust(std::span<const float> logits, const SamplingOptions& options,
                const TokenHistory& history);
  void penalize(const SamplingOptions& options, const TokenHistory& history);
  void drop(std::size_t token);
  void keep_top_k(std::int32_t k);
  void keep_top_p(float top_p);

  std::vector<double> adjusted_;      // (V) logits after bias and penalties; -inf if dropped
  std::vector<float> weights_;        // (V) undivided softmax; 0 if dropped
  std::vector<double> block_sums_;    // of `weights_`
  std::vector<double> largest_;       // (V) scratch of top-k
  std::vector<std::int32_t> order_;   // tokens, sorted as far as top-p needs
  std::vector<std::int32_t> counts_;  // (V) occurrences in the response; 0 between calls
  std::vector<std::uint8_t> seen_;    // (V) occurs in prompt or response; 0 between calls
  std::int32_t greedy_ = -1;          // the chosen token at temperature 0, otherwise -1
  bool plain_ = false;                // no bias, penalty or filter; `adjusted_` is not used
};

}  // namespace tidemill::engines
