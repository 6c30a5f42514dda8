// SPDX-License-Identifier: Apache-2.0
// Character operations of Python's `str`: case, white space, code point positions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tidemill::engines::chat {

/// Returns whether `str.isspace` holds for one character: White_Space and U+001C to U+001F.
[[nodiscard]] bool is_space(char32_t c) noexcept;
/// Returns whether `repr` shows the character unescaped.
[[nodiscard]] bool is_printable(char32_t c) noexcept;
[[nodiscard]] bool is_alphabetic(char32_t c) noexcept;     // letters
[[nodiscard]] bool is_decimal_digit(char32_t c) noexcept;  // Nd
[[nodiscard]] bool is_numeric(char32_t c) noexcept;        // N*
[[nodiscard]] bool is_upper(char32_t c) noexcept;
[[nodiscard]] bool is_lower(char32_t c) noexcept;
/// Returns whether the text has cased characters, and those are in upper or title case exactly if
/// no cased character is directly before them (`str.istitle`).
[[nodiscard]] bool is_title(std::string_view text) noexcept;

/// Returns whether `\w` of Python's `re` matches: a letter, a number or an underscore.
[[nodiscard]] bool is_word_character(char32_t c) noexcept;

/// Returns the text in upper case, with full mappings: U+00DF becomes SS.
[[nodiscard]] std::string to_upper(std::string_view text);
/// Returns the text in lower case; a sigma that ends a word becomes U+03C2.
[[nodiscard]] std::string to_lower(std::string_view text);
/// Returns the first character in title case and the rest in lower case (`str.capitalize`).
[[nodiscard]] std::string capitalize(std::string_view text);
/// Returns every run of letters capitalized (`str.title`).
[[nodiscard]] std::string to_title(std::string_view text);
/// Returns the text with full case folding (`str.casefold`).
[[nodiscard]] std::string fold_case(std::string_view text);
/// Returns the text with upper and lower case exchanged (`str.swapcase`).
[[nodiscard]] std::string swap_case(std::string_view text);

/// The ends that `strip` removes characters from.
enum class StripEnds : std::uint8_t { kBoth, kLeft, kRight };

/// Returns the text without white space at its ends.
[[nodiscard]] std::string_view strip(std::string_view text, StripEnds ends = StripEnds::kBoth);
/// Returns the text without characters of the set `characters` at its ends.
[[nodiscard]] std::string_view strip(std::string_view text, std::string_view characters,
                                     StripEnds ends);

/// Returns the characters of a text, each as UTF-8.
[[nodiscard]] std::vector<std::string_view> characters_of(std::string_view text);

/// Returns the byte offset of the code point with the given index, or the size of the text if it
/// has fewer code points.
[[nodiscard]] std::size_t byte_offset(std::string_view text, std::size_t code_point) noexcept;

}  // namespace tidemill::engines::chat
