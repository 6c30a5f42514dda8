// SPDX-License-Identifier: Apache-2.0
#include "base/text/clip.hpp"

#include <algorithm>

#include "base/text/utf8.hpp"

namespace tidemill {
namespace {

bool is_control(char32_t c) {
  return c < 0x20U || (c >= 0x7FU && c < 0xA0U);
}

}  // namespace

std::string clipped(std::string_view text, std::size_t max_bytes) {
  const std::size_t end = std::min(text.size(), max_bytes);
  std::string out;
  std::size_t at = 0;
  while (at < end) {
    const Utf8Step step = read_utf8(text, at);
    if (at + step.length > end) {
      break;  // a cut in the middle of a character would leave invalid UTF-8
    }
    if (step.kind != Utf8Step::Kind::kCharacter || is_control(step.code_point)) {
      out += '?';
    } else {
      out += text.substr(at, step.length);
    }
    at += step.length;
  }
  return at < text.size() ? out + "..." : out;
}

}  // namespace tidemill
