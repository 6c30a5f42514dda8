// SPDX-License-Identifier: Apache-2.0
// Values as text: what `str`, `repr` and `json.dumps` of Python give.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engines/chat/budget.hpp"
#include "engines/chat/value.hpp"

namespace tidemill::engines::chat {

/// Returns the shortest digits that read back as `value`, in Python's layout: exponent form below
/// 1e-4 and from 1e16, ".0" after a whole number.
[[nodiscard]] std::string float_repr(double value);

/// Appends what printing the value gives: True, False and None, strings as they are, containers
/// with their items' `repr`.
void append_text(const Value& value, Budget& budget, std::string& out);
/// Returns what printing the value gives.
[[nodiscard]] std::string to_text(const Value& value, Budget& budget);
/// Returns Python's `repr`.
[[nodiscard]] std::string to_repr(const Value& value, Budget& budget);

/// How `to_json` writes.
struct JsonFormat {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;          // repeated per level; nothing: one line
  std::optional<std::string> item_separator;  // ", ", or "," with an indent
  std::optional<std::string> key_separator;   // ": "
};

/// Returns the value as JSON.
/// Throws `TemplateError` for what JSON cannot hold.
[[nodiscard]] std::string to_json(const Value& value, const JsonFormat& format, Budget& budget);

}  // namespace tidemill::engines::chat
