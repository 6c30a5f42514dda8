// SPDX-License-Identifier: Apache-2.0
// Finding, splitting and replacing in text, in linear time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engines/chat/budget.hpp"

namespace tidemill::engines::chat {

/// Which end a bounded number of splits, or a search, begins at.
enum class SplitFrom : std::uint8_t { kLeft, kRight };

/// Returns where `part` first comes at or after `from`; npos if it does not.
[[nodiscard]] std::size_t find_text(std::string_view text, std::string_view part, std::size_t from);
/// Returns where `part` last comes; npos if it does not.
[[nodiscard]] std::size_t find_last_text(std::string_view text, std::string_view part);

/// Splits at each `separator`, at most `max` times unless that is negative. Requires a separator.
[[nodiscard]] std::vector<std::string_view> split_at(std::string_view text,
                                                     std::string_view separator, std::int64_t max,
                                                     SplitFrom direction);
/// Splits at runs of white space; those at the ends go.
[[nodiscard]] std::vector<std::string_view> split_at_space(std::string_view text, std::int64_t max,
                                                           SplitFrom direction);
/// Splits at line ends, which stay with their lines if `keep_ends`.
[[nodiscard]] std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends);

/// Replaces `part`, at most `max` times unless that is negative. An empty part comes between all
/// characters and at both ends.
[[nodiscard]] std::string replace_all(Budget& budget, std::string_view text, std::string_view part,
                                      std::string_view by, std::int64_t max);

}  // namespace tidemill::engines::chat
