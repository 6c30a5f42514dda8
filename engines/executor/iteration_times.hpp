// SPDX-License-Identifier: Apache-2.0
// Predicts how long a rollout step takes, from what it computes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/clock.hpp"
#include "engines/step.hpp"

namespace tidemill::engines {

/// What a rollout step computes.
struct IterationLoad {
  std::int64_t decode_tokens = 0;
  std::int64_t prefill_tokens = 0;
  std::int64_t read_tokens = 0;  // cached positions that it reads
};

/// A linear model of the time of iterations: a constant, and a time for each decoded token, each
/// prefilled token and each cached position that is read. It is fitted by least squares to the
/// iterations until now, where the weight of each decays with the number of later ones.
///
/// Threads: one call at a time.
class IterationTimes {
public:
  /// Adds the time that an iteration took.
  void add(const IterationLoad& load, Duration spent);

  /// Returns the expected time of an iteration, which is not negative; 0 before the first `add`.
  [[nodiscard]] Duration predict(const IterationLoad& load) const;

  /// Returns how many tokens can be prefilled, in addition to `load`, in `limit`: at least the
  /// smaller of `kMinPrefill` and `max_tokens`, and at most `max_tokens`. Before the first
  /// prefill, returns at most `kFirstPrefill`, because no time is known.
  [[nodiscard]] std::int64_t prefill_within(const IterationLoad& load, Duration limit,
                                            std::int64_t max_tokens) const;

  /// Returns how many prefilled tokens an iteration needs to be efficient: as many as take
  /// `kEfficientTimes` as long as its constant part, within `kMinPrefill` and `kMaxEfficient`.
  /// Before the first prefill, returns `kFirstPrefill`.
  [[nodiscard]] std::int64_t efficient_prefill() const;

  /// Smaller chunks cost more time per token than they save latency.
  static constexpr std::int64_t kMinPrefill = 64;
  static constexpr std::int64_t kFirstPrefill = 128;
  static constexpr std::int64_t kMaxEfficient = 4096;
  static constexpr double kEfficientTimes = 8.0;

private:
  static constexpr std::size_t kTerms = 4;
  using Terms = std::array<double, kTerms>;

  [[nodiscard]] static Terms terms_of(const IterationLoad& load);
  void fit();

  std::array<Terms, kTerms> products_{};  // decayed sums of the products of two terms
  Terms moments_{};                       // decayed sums of term times seconds
  Terms coefficients_{};                  // seconds
};

}  // namespace tidemill::engines
