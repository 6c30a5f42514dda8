// SPDX-License-Identifier: Apache-2.0
// Finds added tokens in text.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "engines/tokenizer/regex.hpp"
#include "engines/tokenizer/tokenizer_spec.hpp"

namespace tidemill::engines {

/// A part of a text: an added token, or what lies between two.
struct TextSection {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::int32_t id = -1;  // -1: text
};

/// Cuts added tokens out of a text: at the leftmost position the longest one. Immutable.
class AddedTokenMatcher {
public:
  /// Sorts `tokens`, whose contents are non-empty and distinct.
  [[nodiscard]] static Result<AddedTokenMatcher> build(std::vector<AddedToken> tokens);

  /// Cuts `text` into sections, in order and without empty text. A token with `lstrip` or `rstrip`
  /// covers the white space it takes along.
  /// Errors: those of `Regex::find`.
  [[nodiscard]] Result<std::vector<TextSection>> cut(std::string_view text) const;

private:
  // A range of `tokens_`.
  struct Range {
    std::size_t begin = 0;
    std::size_t end = 0;
  };

  AddedTokenMatcher(std::vector<AddedToken> tokens, Regex word);
  // Returns the longest token that `text` has at `offset`, or nullptr.
  [[nodiscard]] const AddedToken* longest_at(std::string_view text, std::size_t offset) const;

  std::vector<AddedToken> tokens_;  // by content
  std::array<Range, 256> by_first_byte_{};
  Regex word_character_;
};

}  // namespace tidemill::engines
