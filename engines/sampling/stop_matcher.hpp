// SPDX-License-Identifier: Apache-2.0
// Finds stop strings in text that arrives in pieces, even if a stop string spans several pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace tidemill::engines {

/// An occurrence of a stop string in the text.
struct StopMatch {
  std::size_t stop_index = 0;  // the index of the stop string
  std::uint64_t begin = 0;     // the offset of its first byte in the text
  friend bool operator==(const StopMatch&, const StopMatch&) = default;
};

/// Searches a text for the stop string that is completed first. If the same byte completes two, the
/// longer one counts.
///
/// Keeps only the end of the text in which a stop string could have begun: at most one byte less
/// than the longest stop string.
class StopMatcher {
public:
  static constexpr std::size_t kMaxStops = 64;
  static constexpr std::size_t kMaxStopBytes = 1024;

  /// Creates a matcher for the start of a text.
  /// Errors: `kInvalidArgument` (a stop string that is empty or longer than `kMaxStopBytes`, or
  /// more than `kMaxStops` of them).
  [[nodiscard]] static Result<StopMatcher> create(std::vector<std::string> stops);

  /// Searches the next piece of the text and returns the match, or nullopt if no stop string is
  /// complete yet. After a match, ignores further pieces and returns the same match again.
  std::optional<StopMatch> feed(std::string_view text);

  /// Returns the number of bytes of text that are kept.
  [[nodiscard]] std::size_t kept_bytes() const noexcept { return tail_.size(); }

private:
  explicit StopMatcher(std::vector<std::string> stops);

  std::vector<std::string> stops_;
  std::size_t longest_ = 0;
  std::string tail_;              // the end of the text
  std::uint64_t tail_begin_ = 0;  // the offset of `tail_` in the text
  std::optional<StopMatch> match_;
};

}  // namespace tidemill::engines
