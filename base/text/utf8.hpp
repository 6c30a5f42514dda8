// SPDX-License-Identifier: Apache-2.0
// UTF-8: decoding, checking and repairing byte strings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tidemill {

/// Returns whether the text has control characters of ASCII, DEL among them.
[[nodiscard]] bool has_control(std::string_view text) noexcept;

/// The result of decoding at one position of a byte string.
struct Utf8Step {
  enum class Kind : std::uint8_t {
    kCharacter,   // a whole character
    kInvalid,     // bytes that do not start a character
    kUnfinished,  // the string ends inside a possible character
  };
  Kind kind = Kind::kInvalid;
  std::size_t length = 0;   // bytes; at least 1
  char32_t code_point = 0;  // of a character
};

/// Decodes one step: a character, or bytes that are not one, at `offset`. Surrogates and overlong
/// forms are invalid. Invalid and unfinished bytes are cut into maximal valid prefixes, so that
/// each step corresponds to one U+FFFD.
///
/// Requires `offset < bytes.size()`.
/// Source: Unicode 15, section 3.9, table 3-7 and "U+FFFD substitution of maximal subparts".
[[nodiscard]] Utf8Step read_utf8(std::string_view bytes, std::size_t offset) noexcept;

/// Returns the offset of the first byte that is not part of a character, or nothing if all are.
[[nodiscard]] std::optional<std::size_t> find_invalid_utf8(std::string_view bytes) noexcept;

/// Returns the number of code points. Requires valid UTF-8.
[[nodiscard]] std::size_t count_code_points(std::string_view text) noexcept;

/// Appends one code point. Requires a Unicode scalar value.
void append_utf8(char32_t code_point, std::string& out);

/// Appends `bytes` to `out`, with U+FFFD for each invalid step. Stops at an unfinished character at
/// the end and returns its offset, or `bytes.size()` if there is none.
[[nodiscard]] std::size_t append_repaired_utf8(std::string_view bytes, std::string& out);

/// Returns whether the code point has the Unicode property White_Space.
/// Source: Unicode 15, PropList.txt.
[[nodiscard]] bool is_white_space(char32_t code_point) noexcept;

}  // namespace tidemill
