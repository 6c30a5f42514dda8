// SPDX-License-Identifier: Apache-2.0
// What encoding a text gives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tidemill::engines {

/// Whether `encode` puts the tokens around the text that the model expects, e.g. a begin token.
/// The text of special tokens inside the text is recognised in any case.
enum class AddSpecialTokens : std::uint8_t { kNo, kYes };

/// The bytes [begin, end) of a text that a token stands for, widened to whole characters. Tokens
/// that were put around the text have the empty span at 0.
struct TextSpan {
  std::size_t begin = 0;
  std::size_t end = 0;
  friend bool operator==(const TextSpan&, const TextSpan&) = default;
};

/// The tokens of a text and where they come from.
struct Encoding {
  std::vector<std::int32_t> ids;
  std::vector<TextSpan> spans;  // one per id
};

}  // namespace tidemill::engines
