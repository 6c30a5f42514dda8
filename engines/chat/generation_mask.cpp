// SPDX-License-Identifier: Apache-2.0
// Finds the tokens, with spans in bytes, that overlap generation spans in code points.
#include "engines/chat/generation_mask.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "base/text/utf8.hpp"

namespace tidemill::engines::chat {

std::vector<std::uint8_t> generation_mask(std::string_view text,
                                          std::span<const CodePointSpan> spans,
                                          const Encoding& encoding) {
  TIDEMILL_CHECK(encoding.spans.size() == encoding.ids.size()) << "an encoding without spans";
  std::vector<std::size_t> byte_of;  // of each code point, and the end
  for (std::size_t i = 0; i < text.size(); i += read_utf8(text, i).length) {
    byte_of.push_back(i);
  }
  byte_of.push_back(text.size());
  std::vector<std::uint8_t> in_span(text.size());
  for (const CodePointSpan& span : spans) {
    TIDEMILL_CHECK(span.begin <= span.end && span.end < byte_of.size()) << span.end;
    std::fill(in_span.begin() + static_cast<std::ptrdiff_t>(byte_of[span.begin]),
              in_span.begin() + static_cast<std::ptrdiff_t>(byte_of[span.end]), std::uint8_t{1});
  }
  std::vector<std::uint8_t> mask;
  for (const TextSpan& token : encoding.spans) {
    const auto first = in_span.begin() + static_cast<std::ptrdiff_t>(token.begin);
    const auto last = in_span.begin() + static_cast<std::ptrdiff_t>(token.end);
    mask.push_back(std::find(first, last, 1) != last ? 1 : 0);
  }
  return mask;
}

}  // namespace tidemill::engines::chat
