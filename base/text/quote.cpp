// SPDX-License-Identifier: Apache-2.0
#include "base/text/quote.hpp"

#include <algorithm>

namespace tidemill {

namespace {

constexpr std::size_t kMaxBytes = 80;

bool is_printable(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte >= 0x20U && byte <= 0x7EU;
}

}  // namespace

std::string quote(std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text.substr(0, kMaxBytes)) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (!is_printable(c)) {
      const auto byte = static_cast<unsigned char>(c);
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

std::string quote_unless_plain(std::string_view name) {
  const bool plain = !name.empty() && name.size() <= kMaxBytes &&
                     std::all_of(name.begin(), name.end(), is_printable);
  return plain ? std::string(name) : quote(name);
}

}  // namespace tidemill
