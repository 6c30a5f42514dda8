// SPDX-License-Identifier: Apache-2.0
// Samples the next token from logits.
//
// The choice is a function of the logits, the options, the previous tokens and the sampling key. It
// does not depend on other sequences of the batch. The arithmetic uses only IEEE float and double
// operations, and not exp of the C library, so that equal logits give equal tokens on all machines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/ids.hpp"
#include "base/result.hpp"
#include "engines/sampling/adjusted_logits.hpp"
#include "engines/sampling/kept_tokens.hpp"
#include "engines/sampling/mass_histogram.hpp"
#include "engines/sampling/mass_kernels.hpp"
#include "engines/sampling/mass_row.hpp"
#include "engines/sampling/sampling_options.hpp"

namespace tidemill::engines {

/// Checks that the options are in range, and that biased tokens are below `vocabulary`.
/// Errors: `kInvalidArgument` naming the option.
[[nodiscard]] Status validate(const SamplingOptions& options, std::int64_t vocabulary);

/// Samples tokens from logits.
///
/// Tokens that the mask does not allow have probability 0 from the beginning. The other steps, in
/// Hugging Face's order:
///
/// 1. Logit bias.
/// 2. Repetition penalty over prompt and response.
/// 3. Frequency and presence penalties over the response.
/// 4. Temperature. At temperature 0, the first of the largest logits is chosen, and no filter acts.
/// 5. Top-k. Tokens that tie with the k-th are kept.
/// 6. Top-p. Of the remaining tokens, the least probable are dropped while the others have at least
///    the share top_p of the mass. Of equally probable tokens, the one with the lowest id is
///    dropped first. The most probable token is always kept. Masses are added as integers
///    (mass_kernels.hpp).
/// 7. Min-p.
///
/// Requires valid options. A token whose logit is minus infinity is never sampled.
/// Threads: one call at a time, since the object holds scratch memory. Results do not depend on it.
class Sampler {
public:
  /// Calls `body(begin, end)` for disjoint ranges that cover [0, count), possibly in parallel, and
  /// returns when all calls are done. The result does not depend on the ranges.
  using BlockLoop = std::function<void(
      std::size_t count, const std::function<void(std::size_t begin, std::size_t end)>& body)>;

  /// Creates a sampler that processes the blocks of a row with `kernels`, which must outlive it,
  /// one after the other.
  explicit Sampler(const MassKernels& kernels = portable_mass_kernels());
  /// Creates a sampler that processes them with `loop`.
  Sampler(const MassKernels& kernels, BlockLoop loop);

  /// Samples a token by inverting the cumulative mass of the kept tokens in token order.
  /// Errors: `kInvalidArgument` (a token of `history` is outside the vocabulary), `kInternal`
  /// naming the sample (an allowed logit is NaN or infinity, or all are minus infinity).
  [[nodiscard]] Result<std::int32_t> sample(std::span<const float> logits,
                                            const SamplingOptions& options,
                                            const TokenHistory& history, const SamplingKey& key,
                                            TokenMask mask = {});

  /// Samples like `sample`, but with the random number `uniform` in [0, 1). Errors do not name the
  /// sample.
  [[nodiscard]] Result<std::int32_t> sample_with(std::span<const float> logits,
                                                 const SamplingOptions& options,
                                                 const TokenHistory& history, double uniform,
                                                 TokenMask mask = {});

  /// Writes the probabilities with which `sample` chooses tokens, and returns the number of tokens
  /// kept. Dropped tokens have probability exactly 0. So do kept tokens whose mass is below the
  /// normal floats, which are never sampled.
  /// Shapes: `logits` (V), `probabilities` (V).
  /// Errors: those of `sample_with`; `kInvalidArgument` if the sizes differ.
  [[nodiscard]] Result<std::int64_t> distribution(std::span<const float> logits,
                                                  const SamplingOptions& options,
                                                  const TokenHistory& history,
                                                  std::span<float> probabilities,
                                                  TokenMask mask = {});

private:
  /// The tokens that may be sampled.
  enum class Kept : std::uint8_t {
    kAll,       // those of `row_`
    kWithMass,  // those of `row_` with a mass above 0
    kListed,    // those in `kept_`
    kGreedy,    // only `greedy_`
  };
  /// Where the threshold of top-p is: the masses above `range` have less than the wanted sum, with
  /// those in it at least as much.
  struct Threshold {
    MassRange range;
    std::uint64_t above = 0;  // the fixed-point sum of the masses above `range`
  };

  /// Finds the tokens that may be sampled, and their masses.
  [[nodiscard]] Result<Kept> compute_masses(std::span<const float> logits,
                                            const SamplingOptions& options,
                                            const TokenHistory& history, TokenMask mask);
  [[nodiscard]] Largest find_largest();
  [[nodiscard]] std::int32_t first_equal(double largest) const;
  void compute_block(std::size_t block, float temperature);
  void bound_blocks(float temperature);
  [[nodiscard]] Kept filter(const SamplingOptions& options);
  [[nodiscard]] Kept filter_top_p(const SamplingOptions& options);
  bool collect(const MassRange& range, std::size_t limit);
  void narrow(std::uint64_t wanted, double share, Threshold& threshold);
  void drop_tokens(std::uint64_t wanted, const Threshold& threshold, float min_p);
  void drop_below(float min);
  [[nodiscard]] float least_top_k_mass(const SamplingOptions& options);

  const MassKernels* kernels_;
  BlockLoop loop_;
  AdjustedLogits adjusted_;
  double largest_ = 0.0;
  std::int32_t greedy_ = -1;
  std::vector<Largest> block_largest_;
  MassRow row_;
  std::vector<double> block_sums_;                // of `row_`, unless tokens are listed
  std::vector<std::uint64_t> block_fixed_point_;  // of `row_`, if only top-p needs them
  std::vector<double> bounds_;                    // scratch of top-k
  MassHistogram histogram_;
  KeptTokens kept_;
};

}  // namespace tidemill::engines
