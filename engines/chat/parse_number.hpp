// SPDX-License-Identifier: Apache-2.0
// Parses numbers like Python's int() and float().
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "engines/chat/builtins.hpp"
#include "engines/chat/value.hpp"

namespace tidemill::engines::chat {

/// Parses a number like Python's float(), with white space around it and underscores between
/// digits.
[[nodiscard]] std::optional<double> parse_float(std::string_view text);

enum class IntParse : std::uint8_t { kOk, kNoInteger, kTooLarge };

/// Parses an integer like Python's int() into `value`. `base` is from 2 to 36.
[[nodiscard]] IntParse parse_int(std::string_view text, int base, std::int64_t& value);

/// Returns the integer that a string value holds.
/// Throws `TemplateError` if it holds none, or one that does not fit in 64 bits.
[[nodiscard]] Value parsed_integer(Runtime& runtime, const Value& text);
/// Returns the float that a string value holds.
/// Throws `TemplateError` if it holds none.
[[nodiscard]] Value parsed_number(Runtime& runtime, const Value& text);

}  // namespace tidemill::engines::chat
