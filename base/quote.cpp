// SPDX-License-Identifier: Apache-2.0
#include "base/quote.hpp"

#include <array>

namespace tidemill {

std::string quote(std::string_view text) {
  constexpr std::size_t kMaxBytes = 80;
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text.substr(0, kMaxBytes)) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20U || byte > 0x7EU) {
      out += "\\x";
      out += kHex[byte >> 4U];
      out += kHex[byte & 0xFU];
    } else {
      out += c;
    }
  }
  out += text.size() > kMaxBytes ? "...\"" : "\"";
  return out;
}

}  // namespace tidemill
