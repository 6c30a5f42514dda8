// SPDX-License-Identifier: Apache-2.0
// Leftmost-longest search that narrows a range of the sorted contents byte by byte.
#include "engines/tokenizer/added_tokens.hpp"

#include <algorithm>
#include <utility>

#include "base/text/utf8.hpp"
#include "engines/tokenizer/white_space.hpp"

namespace tidemill::engines {
namespace {

unsigned char byte_at(std::string_view text, std::size_t i) {
  return static_cast<unsigned char>(text[i]);
}

}  // namespace

Result<AddedTokenMatcher> AddedTokenMatcher::build(std::vector<AddedToken> tokens) {
  // The definition of \w in the regex crate that the reference implementation uses:
  // https://docs.rs/regex/latest/regex/#perl-character-classes-unicode-friendly
  TIDEMILL_ASSIGN_OR_RETURN(
      Regex word, Regex::compile("[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}]"));
  return AddedTokenMatcher(std::move(tokens), std::move(word));
}

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens, Regex word)
    : tokens_(std::move(tokens)), word_character_(std::move(word)) {
  std::sort(tokens_.begin(), tokens_.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.content < b.content; });
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    Range& range = by_first_byte_[byte_at(tokens_[i].content, 0)];
    if (range.begin == range.end) {
      range.begin = i;
    }
    range.end = i + 1;
  }
}

const AddedToken* AddedTokenMatcher::longest_at(std::string_view text, std::size_t offset) const {
  const AddedToken* longest = nullptr;
  Range range = by_first_byte_[byte_at(text, offset)];
  for (std::size_t depth = 1; range.begin < range.end; ++depth) {
    // All contents in the range share their first `depth` bytes with the text. The shortest one
    // comes first.
    if (tokens_[range.begin].content.size() == depth) {
      longest = &tokens_[range.begin++];
    }
    if (offset + depth == text.size()) {
      break;
    }
    const unsigned char byte = byte_at(text, offset + depth);
    const auto at = [this](std::size_t i) {
      return tokens_.begin() + static_cast<std::ptrdiff_t>(i);
    };
    const auto low = std::lower_bound(
        at(range.begin), at(range.end), byte,
        [depth](const AddedToken& t, unsigned char b) { return byte_at(t.content, depth) < b; });
    const auto high = std::upper_bound(
        low, at(range.end), byte,
        [depth](unsigned char b, const AddedToken& t) { return b < byte_at(t.content, depth); });
    range = {static_cast<std::size_t>(low - tokens_.begin()),
             static_cast<std::size_t>(high - tokens_.begin())};
  }
  return longest;
}

Result<std::vector<TextSection>> AddedTokenMatcher::cut(std::string_view text) const {
  std::vector<TextSection> sections;
  std::size_t done = 0;  // end of the last section
  Regex::Workspace workspace = word_character_.make_workspace();
  const auto is_word = [&](std::size_t begin, std::size_t end) -> Result<bool> {
    TIDEMILL_ASSIGN_OR_RETURN(const auto match,
                              word_character_.find(text.substr(begin, end - begin), 0, workspace));
    return match.has_value();
  };
  for (std::size_t i = 0; i < text.size();) {
    const AddedToken* token = longest_at(text, i);
    if (token == nullptr) {
      ++i;
      continue;
    }
    std::size_t begin = i;
    std::size_t end = i + token->content.size();
    i = end;  // even if the match is discarded below: no shorter match is tried
    if (token->single_word) {
      bool touched = false;
      if (begin > 0) {
        TIDEMILL_ASSIGN_OR_RETURN(touched, is_word(previous_character(text, begin), begin));
      }
      if (!touched && end < text.size()) {
        TIDEMILL_ASSIGN_OR_RETURN(touched, is_word(end, end + read_utf8(text, end).length));
      }
      if (touched) {
        continue;
      }
    }
    if (token->lstrip) {
      begin = white_space_begin(text, begin, std::min(begin, done));
    }
    if (token->rstrip) {
      end = white_space_end(text, end);
    }
    if (done < begin) {
      sections.push_back({done, begin, -1});
    }
    // A token may begin inside the white space that the previous token stripped. As in the
    // reference implementation, the text then continues after the later token.
    sections.push_back({begin, end, token->id});
    done = end;
  }
  if (done < text.size()) {
    sections.push_back({done, text.size(), -1});
  }
  return sections;
}

}  // namespace tidemill::engines
