// SPDX-License-Identifier: Apache-2.0
// Forecasts the lengths of responses from those that have ended and those that are still running.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

namespace tidemill::engines {

/// A survival function: the share of responses that are longer than a given number of tokens.
///
/// It is a step function that never increases. A default-constructed one is 1 everywhere, because
/// nothing is known yet.
class Survival {
public:
  Survival() = default;
  /// Estimates the function from the lengths of responses that have `ended` and of those that are
  /// `running`, which will be longer than they are now. Both must be sorted in ascending order. The
  /// estimate adds `pseudo_count` responses that never end, so that few observations count for
  /// little. The running responses matter because short responses end first.
  /// Source: Kaplan and Meier 1958, "Nonparametric estimation from incomplete observations".
  Survival(std::span<const std::int64_t> ended, std::span<const std::int64_t> running,
           double pseudo_count);

  /// Returns the share of responses longer than `length` tokens.
  [[nodiscard]] double longer_than(std::int64_t length) const noexcept;

private:
  static constexpr std::int64_t kMaxEntries = 4096;

  int shift_ = 0;               // a bucket covers 2^shift_ lengths
  std::vector<double> shares_;  // at the first length of each bucket
  double beyond_ = 1.0;         // at all lengths beyond the last bucket
};

/// Remembers the lengths of recent responses, separately for limits of different magnitude, because
/// requests with high limits tend to get long responses.
///
/// Memory: at most `kNumClasses` windows of `kWindow` lengths.
/// Threads: one call at a time.
class LengthForecast {
public:
  static constexpr std::size_t kWindow = 512;
  static constexpr double kPseudoCount = 1.0;
  /// Limits in (2^(k-1), 2^k] belong to class k.
  static constexpr std::size_t kNumClasses = 33;

  /// Returns the class of a request for at most `max_new_tokens` tokens. Requires 0 or more.
  [[nodiscard]] static std::size_t class_of(std::int64_t max_new_tokens) noexcept;

  /// Records a response of `length` tokens that ended by itself or at its limit.
  void add(std::int64_t max_new_tokens, std::int64_t length);

  /// Returns the estimate for requests of class `index`. `running` holds the present lengths of the
  /// responses of that class that have not ended.
  [[nodiscard]] Survival survival(std::size_t index, std::vector<std::int64_t> running) const;

private:
  std::array<std::deque<std::int64_t>, kNumClasses> ended_;  // the most recent ones of each class
};

}  // namespace tidemill::engines
