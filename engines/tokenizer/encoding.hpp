// SPDX-License-Identifier: Apache-2.0
// The result of encoding a text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tidemill::engines {

/// Whether `encode` adds the tokens that the model expects around a text, such as a begin token.
/// Special tokens that are written out in the text are recognized in either case.
enum class AddSpecialTokens : std::uint8_t { kNo, kYes };

/// The bytes [begin, end) of a text that a token covers, widened to whole characters. Tokens that
/// were added around the text have the empty span at 0.
struct TextSpan {
  std::size_t begin = 0;
  std::size_t end = 0;
  friend bool operator==(const TextSpan&, const TextSpan&) = default;
};

/// The tokens of a text and the part of the text that each one covers.
struct Encoding {
  std::vector<std::int32_t> ids;
  std::vector<TextSpan> spans;  // one per id
};

}  // namespace tidemill::engines
