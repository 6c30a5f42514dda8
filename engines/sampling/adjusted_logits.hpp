// SPDX-License-Identifier: Apache-2.0
// A row of logits after mask, bias and penalties. It stores only the logits that the last two
// change.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "engines/sampling/mass_kernels.hpp"
#include "engines/sampling/sampling_options.hpp"

namespace tidemill::engines {

/// Returns whether the options depend on the previous tokens.
[[nodiscard]] bool reads_history(const SamplingOptions& options) noexcept;

/// Applies a mask, bias and penalties to a row of logits. Logits of tokens that the mask does not
/// allow are minus infinity.
///
/// Changed logits are doubles. A block of logits is read with the changed ones replaced by minus
/// infinity, so that loops over blocks of floats skip them.
/// Threads: `apply` runs alone; the other functions may run concurrently.
class AdjustedLogits {
public:
  /// A logit that bias or penalties change.
  struct Changed {
    std::int32_t token = 0;
    std::int32_t count = 0;  // occurrences in the response
    std::int32_t next = -1;  // index of another one in the same block, or -1
    bool penalized = false;
    double logit = 0.0;
  };

  /// Applies `mask`, and the bias and the penalties of `options`, to `logits` (V). Borrows `logits`
  /// and `mask` until the next call.
  /// Errors: `kInvalidArgument` (a penalty is set, and a token of `history` is outside the
  /// vocabulary). The logits are then unchanged.
  [[nodiscard]] Status apply(std::span<const float> logits, const SamplingOptions& options,
                             const TokenHistory& history, TokenMask mask = {});

  [[nodiscard]] std::size_t size() const noexcept { return logits_.size(); }
  [[nodiscard]] std::size_t num_blocks() const noexcept {
    return (logits_.size() + kMassBlock - 1) / kMassBlock;
  }
  /// Returns the logit of a token.
  [[nodiscard]] double at(std::size_t token) const noexcept {
    if (!changed_.empty() && slots_[token] >= 0) {
      return changed_[static_cast<std::size_t>(slots_[token])].logit;
    }
    return mask_.allows(token) ? static_cast<double>(logits_[token])
                               : -std::numeric_limits<double>::infinity();
  }
  /// Returns the changed logits, in no particular order.
  [[nodiscard]] std::span<const Changed> changed() const noexcept { return changed_; }
  /// Returns whether any logit of a block is changed.
  [[nodiscard]] bool changes(std::size_t block) const noexcept {
    return !changed_.empty() && heads_[block] >= 0;
  }
  /// Returns whether the mask allows no token of a block.
  [[nodiscard]] bool excludes(std::size_t block) const noexcept {
    if (mask_.words.empty()) {
      return false;
    }
    const std::size_t first = block * (kMassBlock / 64);
    const auto words =
        mask_.words.subspan(first, std::min(kMassBlock / 64, mask_.words.size() - first));
    return std::ranges::all_of(words, [](std::uint64_t word) { return word == 0; });
  }
  /// Calls `body` for each changed logit of a block.
  template <class Body>
  void each_changed(std::size_t block, const Body& body) const {
    for (std::int32_t i = changed_.empty() ? -1 : heads_[block]; i >= 0;) {
      const Changed& one = changed_[static_cast<std::size_t>(i)];
      body(one);
      i = one.next;
    }
  }
  /// Returns the logits of block `block` with minus infinity for those that are changed or not
  /// allowed: the row itself, or `copy` if there is a mask or any are changed.
  [[nodiscard]] std::span<const float> block(std::size_t block,
                                             std::array<float, kMassBlock>& copy) const;

private:
  Changed& change(std::int32_t token);
  void penalize(const SamplingOptions& options, const TokenHistory& history);

  void mask_block(std::size_t begin, std::span<float> block) const;

  std::span<const float> logits_;
  TokenMask mask_;
  std::vector<Changed> changed_;
  std::vector<std::int32_t> slots_;  // (V) indices of `changed_`, or -1
  std::vector<std::int32_t> heads_;  // by block: index of one of its changed logits, or -1
};

}  // namespace tidemill::engines
