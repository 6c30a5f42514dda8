// SPDX-License-Identifier: Apache-2.0
// How many pages running sequences will use, iterations ahead.
#pragma once

#include <cstdint>
#include <vector>

#include "engines/scheduler/length_forecast.hpp"

namespace tidemill::engines {

/// A sequence that runs, or might: how many pages it holds and gives back when it ends.
struct ForecastSequence {
  std::int64_t length = 0;           // tokens, prompt included
  std::int64_t response_length = 0;  // of those, generated
  std::int64_t max_response_length = 0;
  std::int64_t pages_held = 0;
  std::int64_t pages_given_back = 0;   // at its end; the others are shared
  const Survival* survival = nullptr;  // never null
};

/// The number of pages in use at some iterations from now, as mean and variance.
///
/// Every sequence generates a token per iteration until it ends; when it does is a matter of
/// chance, independent of the others. Each then uses so many pages more than now, or gives back
/// those it has. Nothing else starts.
/// Threads: one call at a time.
class PageForecast {
public:
  /// Looks so many `iterations` ahead; `margin` standard deviations are kept free above the mean.
  PageForecast(std::int64_t page_tokens, std::int64_t pages_in_use, std::int64_t iterations,
               double margin);

  /// Counts a running sequence in.
  void add(const ForecastSequence& sequence);

  /// Returns whether `pages` pages are enough at all times if `sequence`, which gets `pages_new`
  /// pages now, starts beside those counted in.
  [[nodiscard]] bool fits(const ForecastSequence& sequence, std::int64_t pages_new,
                          std::int64_t pages) const;

  /// Counts in a sequence that has started and got `pages_new` pages.
  void start(const ForecastSequence& sequence, std::int64_t pages_new);

private:
  struct Moment {
    double mean = 0.0;
    double variance = 0.0;
  };
  [[nodiscard]] Moment change(const ForecastSequence& sequence, std::size_t interval) const;

  std::int64_t page_tokens_;
  double in_use_;
  double margin_;
  std::vector<std::int64_t>
      starts_;                   // of the intervals of time, in iterations; the last is the end
  std::vector<Moment> moments_;  // of the change within each interval
};

}  // namespace tidemill::engines
