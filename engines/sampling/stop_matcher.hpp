// SPDX-License-Identifier: Apache-2.0
// Finds stop strings in text that arrives in pieces, wherever the pieces are cut.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace tidemill::engines {

/// A stop string that the text contains.
struct StopMatch {
  std::size_t stop_index = 0;  // among the stop strings
  std::uint64_t begin = 0;     // offset of its first byte from the start of the text
  friend bool operator==(const StopMatch&, const StopMatch&) = default;
};

/// Watches a text for the first stop string that is completed; of two completed by the same byte,
/// the longer one.
///
/// Keeps no more of the text than a stop string could still begin in: one byte less than the
/// longest of them.
class StopMatcher {
public:
  static constexpr std::size_t kMaxStops = 64;
  static constexpr std::size_t kMaxStopBytes = 1024;

  /// Makes a matcher at the start of a text.
  /// Errors: `kInvalidArgument` (a stop string that is empty or longer than `kMaxStopBytes`, or
  /// more than `kMaxStops` of them).
  [[nodiscard]] static Result<StopMatcher> create(std::vector<std::string> stops);

  /// Takes the next piece of the text and returns the match, once there is one. After that the
  /// text has ended: further pieces are ignored and the match is returned again.
  std::optional<StopMatch> feed(std::string_view text);

  /// Returns the number of bytes it keeps.
  [[nodiscard]] std::size_t kept_bytes() const noexcept { return tail_.size(); }

private:
  explicit StopMatcher(std::vector<std::string> stops);

  std::vector<std::string> stops_;
  std::size_t longest_ = 0;
  std::string tail_;              // the last bytes of the text so far
  std::uint64_t tail_begin_ = 0;  // their offset in the text
  std::optional<StopMatch> match_;
};

}  // namespace tidemill::engines
