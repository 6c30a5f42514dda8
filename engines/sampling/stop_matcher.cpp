// SPDX-License-Identifier: Apache-2.0
#include "engines/sampling/stop_matcher.hpp"

#include <algorithm>

namespace tidemill::engines {

Result<StopMatcher> StopMatcher::create(std::vector<std::string> stops) {
  if (stops.size() > kMaxStops) {
    return invalid_argument("at most " + std::to_string(kMaxStops) + " stop strings, not " +
                            std::to_string(stops.size()));
  }
  for (std::size_t i = 0; i < stops.size(); ++i) {
    if (stops[i].empty() || stops[i].size() > kMaxStopBytes) {
      return invalid_argument("stop string " + std::to_string(i) + " must have 1 to " +
                              std::to_string(kMaxStopBytes) + " bytes, not " +
                              std::to_string(stops[i].size()));
    }
  }
  return StopMatcher(std::move(stops));
}

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_) {
    longest_ = std::max(longest_, stop.size());
  }
}

std::optional<StopMatch> StopMatcher::feed(std::string_view text) {
  if (match_ || stops_.empty()) {
    return match_;
  }
  const std::size_t old_size = tail_.size();
  tail_.append(text);
  std::size_t first_end = std::string::npos;
  for (std::size_t i = 0; i < stops_.size(); ++i) {
    const std::string& stop = stops_[i];
    // A match must end in the new piece; otherwise an earlier call would have found it.
    const std::size_t from = old_size >= stop.size() ? old_size - stop.size() + 1 : 0;
    const std::size_t begin = tail_.find(stop, from);
    if (begin == std::string::npos) {
      continue;
    }
    const std::size_t end = begin + stop.size();
    const bool longer =
        match_ && end == first_end && stop.size() > stops_[match_->stop_index].size();
    if (!match_ || end < first_end || longer) {
      first_end = end;
      match_ = StopMatch{i, tail_begin_ + begin};
    }
  }
  const std::size_t keep = std::min(tail_.size(), match_ ? 0 : longest_ - 1);
  tail_begin_ += tail_.size() - keep;
  tail_.erase(0, tail_.size() - keep);
  return match_;
}

}  // namespace tidemill::engines
