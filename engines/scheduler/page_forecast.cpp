// SPDX-License-Identifier: Apache-2.0
#include "engines/scheduler/page_forecast.hpp"

#include <algorithm>
#include <cmath>

namespace tidemill::engines {
namespace {

// Returns the starts of the intervals that a forecast looks at: dense in the near future, where
// pages are needed next, and sparse later, where only the trend is known.
std::vector<std::int64_t> interval_starts(std::int64_t iterations) {
  std::vector<std::int64_t> starts{0};
  for (std::int64_t step = 4; starts.back() < iterations;) {
    starts.push_back(starts.back() + step);
    if (starts.back() >= 32 * step) {
      step *= 2;
    }
  }
  return starts;
}

}  // namespace

PageForecast::PageForecast(std::int64_t page_tokens, std::int64_t pages_in_use,
                           std::int64_t iterations, double margin)
    : page_tokens_(page_tokens),
      in_use_(static_cast<double>(pages_in_use)),
      margin_(margin),
      starts_(interval_starts(iterations)),
      moments_(starts_.size() - 1) {}

// An upper bound within the interval: a sequence that still runs at its start counts with the pages
// that it would hold at its end.
PageForecast::Moment PageForecast::change(const ForecastSequence& sequence,
                                          std::size_t interval) const {
  const std::int64_t response = sequence.response_length + starts_[interval];
  const std::int64_t max_more = sequence.max_response_length - sequence.response_length;
  double runs = 0.0;
  if (response < sequence.max_response_length) {
    const double now = sequence.survival->longer_than(sequence.response_length);
    runs = now > 0.0 ? sequence.survival->longer_than(response) / now : 1.0;
  }
  const std::int64_t length = sequence.length + std::min(starts_[interval + 1], max_more);
  const std::int64_t pages = (length + page_tokens_ - 1) / page_tokens_;
  const auto more = static_cast<double>(std::max<std::int64_t>(pages - sequence.pages_held, 0));
  const auto back = static_cast<double>(sequence.pages_released);
  return {runs * more - (1.0 - runs) * back, runs * (1.0 - runs) * (more + back) * (more + back)};
}

void PageForecast::add(const ForecastSequence& sequence) {
  for (std::size_t i = 0; i < moments_.size(); ++i) {
    const Moment moment = change(sequence, i);
    moments_[i].mean += moment.mean;
    moments_[i].variance += moment.variance;
  }
}

bool PageForecast::fits(const ForecastSequence& sequence, std::int64_t pages_new,
                        std::int64_t pages) const {
  const double in_use = in_use_ + static_cast<double>(pages_new);
  for (std::size_t i = 0; i < moments_.size(); ++i) {
    const Moment moment = change(sequence, i);
    const double mean = in_use + moments_[i].mean + moment.mean;
    const double deviation = std::sqrt(moments_[i].variance + moment.variance);
    if (mean + margin_ * deviation > static_cast<double>(pages)) {
      return false;
    }
  }
  return true;
}

void PageForecast::start(const ForecastSequence& sequence, std::int64_t pages_new) {
  in_use_ += static_cast<double>(pages_new);
  add(sequence);
}

}  // namespace tidemill::engines
