// SPDX-License-Identifier: Apache-2.0
// The masses of a row of logits, in blocks.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engines/sampling/mass_histogram.hpp"
#include "engines/sampling/mass_kernels.hpp"

namespace tidemill::engines {

/// The masses of a row of logits. Reuses its memory for the next row.
///
/// Each block has a bound on its masses, so that a search for large masses skips the blocks that
/// have none. The bounds must be set before `sum_at_least` and `each_in` are called.
/// Threads: calls for different blocks may run concurrently.
class MassRow {
public:
  /// `kernels` must outlive the object.
  explicit MassRow(const MassKernels& kernels) noexcept : kernels_(&kernels) {}

  /// Starts a row of `size` masses. Masses and bounds are unspecified until the caller sets them.
  void resize(std::size_t size);

  /// Returns the number of masses.
  [[nodiscard]] std::size_t size() const noexcept { return masses_.size(); }
  /// Returns the number of blocks. Each has `kMassBlock` masses, except that the last may have
  /// fewer.
  [[nodiscard]] std::size_t num_blocks() const noexcept { return bounds_.size(); }
  /// Returns the masses of a block. Borrowed until the next `resize`.
  [[nodiscard]] std::span<float> block(std::size_t block) noexcept {
    return std::span(masses_).subspan(block * kMassBlock, size_of(block));
  }
  [[nodiscard]] std::span<const float> block(std::size_t block) const noexcept {
    return std::span(masses_).subspan(block * kMassBlock, size_of(block));
  }
  /// Returns all masses. Borrowed until the next `resize`.
  [[nodiscard]] std::span<const float> masses() const noexcept { return masses_; }
  /// Returns the mass of a token. Borrowed until the next `resize`.
  [[nodiscard]] float& at(std::size_t token) noexcept { return masses_[token]; }
  /// Sets the bound of a block. `mass` must be at least the mass that was computed for the block's
  /// largest logit. By rounding, the masses of other logits may be slightly above the bound;
  /// searches allow for that (`rounding_margin_below`).
  void set_bound(std::size_t block, float mass) noexcept { bounds_[block] = mass; }

  /// Returns the sum of `fixed_point_mass` of the masses that are at least `min`.
  [[nodiscard]] std::uint64_t sum_at_least(float min, int bits) const;
  /// Calls `body(token, mass)`, in token order, for each mass in `range` until it returns false.
  template <class Body>
  void each_in(const MassRange& range, const Body& body) const {
    std::array<std::int32_t, kMassBlock> found;
    for (std::size_t b = 0; b < bounds_.size(); ++b) {
      if (!may_reach(b, range.min)) {
        continue;
      }
      const std::span<const float> masses = block(b);
      const std::size_t count =
          kernels_->find(masses.data(), masses.size(), range.min, range.max, found.data());
      for (const std::int32_t i : std::span(found).first(count)) {
        const auto at = static_cast<std::size_t>(i);
        if (!body(b * kMassBlock + at, masses[at])) {
          return;
        }
      }
    }
  }
  /// Sets the masses of a block that are less than `min` to 0 and returns the sum of the others.
  double drop_below(std::size_t block, float min) noexcept;

private:
  [[nodiscard]] std::size_t size_of(std::size_t block) const noexcept {
    return std::min(kMassBlock, masses_.size() - block * kMassBlock);
  }
  [[nodiscard]] bool may_reach(std::size_t block, float min) const noexcept {
    return bounds_[block] >= rounding_margin_below(min);
  }

  const MassKernels* kernels_;
  std::vector<float> masses_;  // (V)
  std::vector<float> bounds_;  // by block
};

}  // namespace tidemill::engines
