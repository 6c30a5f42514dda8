// SPDX-License-Identifier: Apache-2.0
#include "base/text/clip.hpp"

#include <algorithm>

namespace tidemill {

std::string clipped(std::string_view text, std::size_t max_bytes) {
  std::size_t end = std::min(text.size(), max_bytes);
  // A cut in the middle of a UTF-8 character would leave invalid UTF-8.
  while (end > 0 && end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) {
    --end;
  }
  std::string out(text.substr(0, end));
  std::replace_if(
      out.begin(), out.end(),
      [](char c) { return static_cast<unsigned char>(c) < 0x20U || c == 0x7F; }, '?');
  return end < text.size() ? out + "..." : out;
}

}  // namespace tidemill
