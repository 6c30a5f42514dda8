// SPDX-License-Identifier: Apache-2.0
// Runs of white space in UTF-8 text.
#pragma once

#include <cstddef>
#include <string_view>

#include "base/text/utf8.hpp"

namespace tidemill::engines {

/// Returns the offset of the character that ends at `end`. Requires 0 < end.
[[nodiscard]] inline std::size_t previous_character(std::string_view text, std::size_t end) {
  do {
    --end;
  } while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U);
  return end;
}

/// Returns the beginning of the white space that ends at `end` and begins at `not_before` or after.
[[nodiscard]] inline std::size_t white_space_begin(std::string_view text, std::size_t end,
                                                   std::size_t not_before) {
  while (end > not_before) {
    const std::size_t i = previous_character(text, end);
    if (!is_white_space(read_utf8(text, i).code_point)) {
      break;
    }
    end = i;
  }
  return end;
}

/// Returns the end of the white space that begins at `begin`.
[[nodiscard]] inline std::size_t white_space_end(std::string_view text, std::size_t begin) {
  while (begin < text.size()) {
    const Utf8Step step = read_utf8(text, begin);
    if (!is_white_space(step.code_point)) {
      break;
    }
    begin += step.length;
  }
  return begin;
}

}  // namespace tidemill::engines
