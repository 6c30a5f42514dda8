// SPDX-License-Identifier: Apache-2.0
// Forecasts how many pages running sequences will use in the coming iterations.
#pragma once

#include <cstdint>
#include <vector>

#include "engines/scheduler/length_forecast.hpp"

namespace tidemill::engines {

/// A sequence that runs or may start: its lengths, the pages that it holds, and how many of them it
/// will free.
struct ForecastSequence {
  std::int64_t length = 0;           // tokens, including the prompt
  std::int64_t response_length = 0;  // generated tokens
  std::int64_t max_response_length = 0;
  std::int64_t pages_held = 0;
  std::int64_t pages_released = 0;     // pages that its end frees; the others are shared
  const Survival* survival = nullptr;  // never null
};

/// Forecasts the mean and the variance of the number of pages in use, for each of several intervals
/// of coming iterations.
///
/// The model: every sequence generates one token per iteration until it ends, and it ends at a
/// random time that does not depend on the other sequences. In each interval a sequence either
/// still runs, and may need further pages, or has ended and freed its own pages. No other sequence
/// starts.
/// Threads: one call at a time.
class PageForecast {
public:
  /// Looks at least `iterations` iterations ahead. A sequence fits only if the mean plus `margin`
  /// standard deviations does not exceed the number of pages.
  PageForecast(std::int64_t page_tokens, std::int64_t pages_in_use, std::int64_t iterations,
               double margin);

  /// Adds a running sequence to the forecast.
  void add(const ForecastSequence& sequence);

  /// Returns whether `pages` pages suffice in all intervals if `sequence` starts in addition to the
  /// sequences added before. Starting it would use `pages_new` further pages now.
  [[nodiscard]] bool fits(const ForecastSequence& sequence, std::int64_t pages_new,
                          std::int64_t pages) const;

  /// Adds a sequence that has started and uses `pages_new` further pages.
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
      starts_;                   // of the intervals, in iterations from now; the last is the end
  std::vector<Moment> moments_;  // of the change in each interval
};

}  // namespace tidemill::engines
