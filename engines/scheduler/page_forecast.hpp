// SPDX-License-Identifier: Apache-2.0
// Forecasts how many pages running sequences will use in the iterations to come.
#pragma once

#include <cstdint>
#include <vector>

#include "engines/scheduler/length_forecast.hpp"

namespace tidemill::engines {

/// A sequence that runs or may start: its lengths, and the pages that it holds and will free.
struct ForecastSequence {
  std::int64_t length = 0;           // tokens, including the prompt
  std::int64_t response_length = 0;  // generated tokens
  std::int64_t max_response_length = 0;
  std::int64_t pages_held = 0;
  std::int64_t pages_released = 0;     // when it ends; its other pages are shared
  const Survival* survival = nullptr;  // never null
};

/// Forecasts the mean and the variance of the number of pages in use at points ahead.
///
/// The model: every sequence generates one token per iteration until it ends, and it ends at a
/// random time that does not depend on the other sequences. At each point ahead a sequence either
/// still runs and uses more pages than now, or has ended and freed its own. No other sequence
/// starts.
/// Threads: one call at a time.
class PageForecast {
public:
  /// Looks `iterations` iterations ahead. `margin` standard deviations above the mean stay free.
  PageForecast(std::int64_t page_tokens, std::int64_t pages_in_use, std::int64_t iterations,
               double margin);

  /// Adds a running sequence to the forecast.
  void add(const ForecastSequence& sequence);

  /// Returns whether `pages` pages suffice at all points ahead if `sequence` starts in addition to
  /// the sequences added before. It would take `pages_new` pages into use now.
  [[nodiscard]] bool fits(const ForecastSequence& sequence, std::int64_t pages_new,
                          std::int64_t pages) const;

  /// Adds a sequence that has started and took `pages_new` pages into use.
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
