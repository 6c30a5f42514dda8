// SPDX-License-Identifier: Apache-2.0
// Finds, splits and replaces text in linear time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engines/chat/budget.hpp"

namespace tidemill::engines::chat {

/// The end of the text at which a search, or a limited number of splits, begins.
enum class SearchFrom : std::uint8_t { kLeft, kRight };

/// Returns the offset of the first `part` at or after `from`, or npos if there is none.
[[nodiscard]] std::size_t find_text(std::string_view text, std::string_view part, std::size_t from);
/// Returns the offset of the last `part`, or npos if there is none.
[[nodiscard]] std::size_t find_last_text(std::string_view text, std::string_view part);

/// Splits at each `separator`, at most `max` times unless `max` is negative. `separator` must not
/// be empty.
[[nodiscard]] std::vector<std::string_view> split_at(std::string_view text,
                                                     std::string_view separator, std::int64_t max,
                                                     SearchFrom direction);
/// Splits at runs of white space, at most `max` times unless `max` is negative. White space at the
/// ends is dropped.
[[nodiscard]] std::vector<std::string_view> split_at_space(std::string_view text, std::int64_t max,
                                                           SearchFrom direction);
/// Splits at line ends. If `keep_ends` is true, they remain part of their lines.
[[nodiscard]] std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends);

/// Replaces `part`, at most `max` times unless `max` is negative. An empty part occurs between all
/// characters and at both ends.
[[nodiscard]] std::string replace_all(Budget& budget, std::string_view text, std::string_view part,
                                      std::string_view replacement, std::int64_t max);

}  // namespace tidemill::engines::chat
