// SPDX-License-Identifier: Apache-2.0
// Converts values to text like Python's `str`, `repr` and `json.dumps`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engines/chat/budget.hpp"
#include "engines/chat/value.hpp"

namespace tidemill::engines::chat {

/// Returns the shortest digits that parse back to `value`, in Python's layout: exponent form below
/// 1e-4 and from 1e16, ".0" after a whole number.
[[nodiscard]] std::string float_repr(double value);

/// Appends the text that printing the value gives: True, False or None, a string unchanged, a
/// container with the `repr` of its items.
void append_text(const Value& value, Budget& budget, std::string& out);
/// Returns the text that printing the value gives.
[[nodiscard]] std::string to_text(const Value& value, Budget& budget);
/// Returns Python's `repr`.
[[nodiscard]] std::string to_repr(const Value& value, Budget& budget);

/// The options of `to_json`.
struct JsonFormat {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;          // repeated per level; nullopt: one line
  std::optional<std::string> item_separator;  // nullopt: ", ", or "," with an indent
  std::optional<std::string> key_separator;   // nullopt: ": "
};

/// Returns the value as JSON.
/// Throws `TemplateError` for values that JSON cannot represent.
[[nodiscard]] std::string to_json(const Value& value, const JsonFormat& format, Budget& budget);

}  // namespace tidemill::engines::chat
