// SPDX-License-Identifier: Apache-2.0
// How long responses will be, judged by those that have ended and those that are still running.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

namespace tidemill::engines {

/// The share of responses that are longer than so many tokens.
///
/// A step function that never rises. A default one is 1 everywhere: nothing is known.
class Survival {
public:
  Survival() = default;
  /// Estimates from the lengths of responses that have ended, and of those that are still running
  /// and will be longer than they are now; both sorted in ascending order.
  /// `doubt` responses are added that never ended: what little is known is not trusted.
  /// Source: Kaplan and Meier 1958, "Nonparametric estimation from incomplete observations". The
  /// running ones matter: the responses that end first are the short ones.
  Survival(std::span<const std::int64_t> ended, std::span<const std::int64_t> running,
           double doubt);

  /// Returns the share of responses longer than `length` tokens.
  [[nodiscard]] double longer_than(std::int64_t length) const noexcept;

private:
  static constexpr std::int64_t kMostEntries = 4096;

  int shift_ = 0;               // lengths are looked up in buckets of 2^shift_ tokens
  std::vector<double> shares_;  // of the first length of each bucket
  double beyond_ = 1.0;         // share of lengths behind the last bucket
};

/// Remembers the lengths of the last responses, apart for limits of different magnitude: what may
/// be long tends to be.
///
/// Memory: at most 32 windows. Threads: one call at a time.
class LengthForecast {
public:
  static constexpr std::size_t kWindow = 512;
  static constexpr double kDoubt = 1.0;
  /// Limits in (2^(k-1), 2^k] are of class k.
  static constexpr std::size_t kNumClasses = 33;

  /// Returns the class of requests for at most `max_new_tokens` tokens. Requires 0 or more.
  [[nodiscard]] static std::size_t class_of(std::int64_t max_new_tokens) noexcept;

  /// Remembers a response of `length` tokens that has ended by itself or at its limit.
  void add(std::int64_t max_new_tokens, std::int64_t length);

  /// Estimates for the requests of class `index`, `running` tokens of which are generated so far.
  [[nodiscard]] Survival survival(std::size_t index, std::vector<std::int64_t> running) const;

private:
  std::array<std::deque<std::int64_t>, kNumClasses> ended_;  // the last of each class
};

}  // namespace tidemill::engines
