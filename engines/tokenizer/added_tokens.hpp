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

/// A section of a text: one added token, or the text between two of them.
struct TextSection {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::int32_t id = -1;  // of the added token; -1: text
};

/// Splits a text at its added tokens, scanning from the left. If several tokens match at a
/// position, the longest one is taken. Immutable.
class AddedTokenMatcher {
public:
  /// Sorts `tokens`. Their contents must be non-empty and distinct.
  [[nodiscard]] static Result<AddedTokenMatcher> build(std::vector<AddedToken> tokens);

  /// Cuts `text` into sections, in order. No section of text is empty. The section of a token with
  /// `lstrip` or `rstrip` includes the adjacent white space.
  /// Errors: those of `Regex::find`.
  [[nodiscard]] Result<std::vector<TextSection>> cut(std::string_view text) const;

private:
  // A range of `tokens_`.
  struct Range {
    std::size_t begin = 0;
    std::size_t end = 0;
  };

  AddedTokenMatcher(std::vector<AddedToken> tokens, Regex word);
  // Returns the longest token that `text` contains at `offset`, or nullptr.
  [[nodiscard]] const AddedToken* longest_at(std::string_view text, std::size_t offset) const;

  std::vector<AddedToken> tokens_;  // sorted by content
  std::array<Range, 256> by_first_byte_{};
  Regex word_character_;
};

}  // namespace tidemill::engines
