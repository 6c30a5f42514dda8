// SPDX-License-Identifier: Apache-2.0
#include "engines/scheduler/length_forecast.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace tidemill::engines {

Survival::Survival(std::span<const std::int64_t> ended, std::span<const std::int64_t> running,
                   double pseudo_count) {
  while (!ended.empty() && ended.back() >> shift_ >= kMaxEntries) {
    ++shift_;
  }
  for (std::size_t first = 0, end = 0; first < ended.size(); first = end) {
    const std::int64_t length = ended[first];
    while (end < ended.size() && ended[end] == length) {
      ++end;
    }
    // Buckets that begin before this length.
    const auto below =
        static_cast<std::size_t>((length + (std::int64_t{1} << shift_) - 1) >> shift_);
    shares_.resize(std::max(shares_.size(), below), beyond_);
    // The responses that reached this length: they ended at or after it, or run beyond it.
    const auto run_on = running.end() - std::ranges::lower_bound(running, length);
    const double reached =
        static_cast<double>(ended.size() - first) + static_cast<double>(run_on) + pseudo_count;
    beyond_ *= 1.0 - static_cast<double>(end - first) / reached;
  }
}

double Survival::longer_than(std::int64_t length) const noexcept {
  const auto bucket = static_cast<std::size_t>(length >> shift_);
  return bucket < shares_.size() ? shares_[bucket] : beyond_;
}

std::size_t LengthForecast::class_of(std::int64_t max_new_tokens) noexcept {
  const auto limit = static_cast<std::uint64_t>(std::max<std::int64_t>(max_new_tokens, 1));
  return std::min<std::size_t>(static_cast<std::size_t>(std::bit_width(limit - 1)),
                               kNumClasses - 1);
}

void LengthForecast::add(std::int64_t max_new_tokens, std::int64_t length) {
  auto& ended = ended_[class_of(max_new_tokens)];
  ended.push_back(length);
  if (ended.size() > kWindow) {
    ended.pop_front();
  }
}

Survival LengthForecast::survival(std::size_t index, std::vector<std::int64_t> running) const {
  std::vector<std::int64_t> ended(ended_[index].begin(), ended_[index].end());
  std::ranges::sort(ended);
  std::ranges::sort(running);
  return {ended, running, kPseudoCount};
}

}  // namespace tidemill::engines
