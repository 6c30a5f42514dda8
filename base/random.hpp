// SPDX-License-Identifier: Apache-2.0
// Random numbers that a seed reproduces.
//
// There are two kinds. `keyed_uniform` is a pure function of (seed, stream, counter): a sample gets
// the same numbers at the same token position, whichever samples share its batch. `RandomStream` is
// a sequence for code that draws in one fixed order, such as a shuffle.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

namespace tidemill {

/// Returns 64 random bits that depend only on the three arguments.
///
/// Source: Philox-4x32-10, Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
/// Threads: pure function.
[[nodiscard]] std::uint64_t keyed_bits(std::uint64_t seed, std::uint64_t stream,
                                       std::uint64_t counter) noexcept;

/// Returns a double in [0, 1) with 53 random bits that depends only on the three arguments.
[[nodiscard]] double keyed_uniform(std::uint64_t seed, std::uint64_t stream,
                                   std::uint64_t counter) noexcept;

/// A seeded sequence of random numbers; a value that can be copied and stored.
class RandomStream {
public:
  /// Starts at `counter` of the sequence named by (`seed`, `stream`).
  explicit RandomStream(std::uint64_t seed, std::uint64_t stream = 0,
                        std::uint64_t counter = 0) noexcept
      : seed_(seed), stream_(stream), counter_(counter) {}

  /// Returns the position in the sequence, which a checkpoint stores along with seed and stream.
  [[nodiscard]] std::uint64_t counter() const noexcept { return counter_; }

  /// Draws 64 bits.
  std::uint64_t bits() noexcept { return keyed_bits(seed_, stream_, counter_++); }
  /// Draws a double in [0, 1).
  double uniform() noexcept { return keyed_uniform(seed_, stream_, counter_++); }
  /// Draws an integer in [0, bound) without modulo bias. Requires `bound` > 0.
  std::uint64_t below(std::uint64_t bound) noexcept;
  /// Draws from the standard normal distribution (Box-Muller). Each call takes two draws.
  double normal() noexcept;

private:
  std::uint64_t seed_;
  std::uint64_t stream_;
  std::uint64_t counter_;
};

/// Puts `values` in a random order (Fisher-Yates).
template <class T>
void shuffle(std::span<T> values, RandomStream& random) {
  for (std::size_t i = values.size(); i > 1; --i) {
    std::swap(values[i - 1], values[random.below(i)]);
  }
}

}  // namespace tidemill
