// SPDX-License-Identifier: Apache-2.0
// The filter `wordwrap`, which behaves like Python's textwrap.wrap on each line.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text/utf8.hpp"
#include "engines/chat/markup.hpp"
#include "engines/chat/operators.hpp"
#include "engines/chat/string_search.hpp"
#include "engines/chat/text_filters.hpp"
#include "engines/chat/unicode.hpp"

namespace tidemill::engines::chat {
namespace {

// The characters at which lines may be broken: only these, not all Unicode white space.
bool is_breaking_space(char32_t c) {
  return c == U' ' || (c >= U'\t' && c <= U'\r');
}

bool is_letter(char32_t c) {
  return is_word_character(c) && !is_decimal_digit(c);
}

bool may_precede_dash(char32_t c) {
  return is_word_character(c) ||
         (c < 0x80 && std::u32string_view(U"!\"'&.,?").find(c) != std::u32string_view::npos);
}

// A line as code points, with access beyond both ends.
class Characters {
public:
  explicit Characters(std::string_view text) {
    for (std::size_t i = 0; i < text.size();) {
      const Utf8Step step = read_utf8(text, i);
      points_.push_back(step.code_point);
      offsets_.push_back(i);
      i += step.length;
    }
    offsets_.push_back(text.size());
  }

  [[nodiscard]] std::size_t size() const { return points_.size(); }
  /// Returns a character, or 0 before the beginning and after the end.
  [[nodiscard]] char32_t at(std::size_t i) const { return i < points_.size() ? points_[i] : 0; }
  /// Returns the byte offset of a character.
  [[nodiscard]] std::size_t offset(std::size_t i) const { return offsets_[i]; }
  [[nodiscard]] bool is_hyphen(std::size_t i) const { return at(i) == U'-'; }
  [[nodiscard]] bool letter_at(std::size_t i) const { return is_letter(at(i)); }

private:
  std::vector<char32_t> points_;
  std::vector<std::size_t> offsets_;
};

// A part of a line that is not broken: the characters [begin, end).
struct Chunk {
  std::size_t begin = 0;
  std::size_t end = 0;
  [[nodiscard]] std::size_t size() const { return end - begin; }
};

// If a dash of several hyphens between words begins at `i`, returns its end, else `i`.
std::size_t end_of_dash(const Characters& text, std::size_t i) {
  if (i == 0 || !may_precede_dash(text.at(i - 1))) {
    return i;
  }
  std::size_t end = i;
  while (text.is_hyphen(end)) {
    ++end;
  }
  return end - i >= 2 && is_word_character(text.at(end)) ? end : i;
}

// Returns whether a line may be broken after the hyphen at `i`: two letters, or a letter and a
// hyphen twice, come before, and letters after it.
bool breaks_after_hyphen(const Characters& text, std::size_t i) {
  if (!text.is_hyphen(i)) {
    return false;
  }
  const bool before =
      i >= 2 && text.letter_at(i - 1) &&
      (text.letter_at(i - 2) || (i >= 3 && text.is_hyphen(i - 2) && text.letter_at(i - 3)));
  const bool after = text.letter_at(i + 1) &&
                     (text.letter_at(i + 2) || (text.is_hyphen(i + 2) && text.letter_at(i + 3)));
  return before && after;
}

// Returns the end of the word, or of the part of a hyphenated word, that begins at `begin`.
std::size_t end_of_word(const Characters& text, std::size_t begin) {
  for (std::size_t i = begin + 1; i < text.size(); ++i) {
    if (breaks_after_hyphen(text, i)) {
      return i + 1;
    }
    if (is_breaking_space(text.at(i)) || end_of_dash(text, i) != i) {
      return i;
    }
  }
  return text.size();
}

// Splits into runs of white space and the parts between them.
std::vector<Chunk> split_chunks(const Characters& text, bool at_hyphens) {
  std::vector<Chunk> chunks;
  for (std::size_t i = 0; i < text.size();) {
    const bool is_space = is_breaking_space(text.at(i));
    std::size_t end = i;
    if (is_space || !at_hyphens) {
      while (end < text.size() && is_breaking_space(text.at(end)) == is_space) {
        ++end;
      }
    } else {
      end = end_of_dash(text, i);
      end = end != i ? end : end_of_word(text, i);
    }
    chunks.push_back({i, end});
    i = end;
  }
  return chunks;
}

struct WrapOptions {
  std::size_t width = 79;
  bool breaks_long_words = true;
  bool splits_at_hyphens = true;  // between words
  bool prefers_hyphens = true;    // inside words that are longer than a line
};

class Wrapper {
public:
  Wrapper(Runtime& runtime, std::string_view line, const WrapOptions& options)
      : runtime_(runtime),
        line_(line),
        text_(line),
        options_(options),
        chunks_(split_chunks(text_, options.splits_at_hyphens)) {}

  // Appends the wrapped lines to `lines`.
  void run(List& lines) {
    bool is_first = true;
    while (next_ < chunks_.size()) {
      runtime_.budget.step();
      if (!is_first && is_blank(chunks_[next_])) {
        ++next_;
      }
      fill();
      if (!current_.empty() && is_blank(current_.back())) {
        current_.pop_back();
      }
      if (!current_.empty()) {
        is_first = false;
        lines.push_back(make_string(runtime_, taken_text()));
      }
    }
  }

private:
  // Takes the chunks of one line. If the first one is longer than a line, it may be cut.
  void fill() {
    current_.clear();
    std::size_t used = 0;
    while (next_ < chunks_.size() && used + chunks_[next_].size() <= options_.width) {
      used += chunks_[next_].size();
      current_.push_back(chunks_[next_++]);
    }
    if (next_ == chunks_.size() || chunks_[next_].size() <= options_.width) {
      return;
    }
    if (options_.breaks_long_words) {
      Chunk& long_word = chunks_[next_];
      const std::size_t cut = cut_of(long_word, options_.width - used);
      current_.push_back({long_word.begin, cut});
      long_word.begin = cut;
    } else if (current_.empty()) {
      current_.push_back(chunks_[next_++]);
    }
  }

  // Returns where to cut a word of which `space` characters fit.
  [[nodiscard]] std::size_t cut_of(const Chunk& word, std::size_t space) const {
    const std::size_t end = word.begin + space;
    if (!options_.prefers_hyphens) {
      return end;
    }
    std::size_t hyphen = end;
    while (hyphen > word.begin && !text_.is_hyphen(hyphen - 1)) {
      --hyphen;
    }
    for (std::size_t i = word.begin; i + 1 < hyphen; ++i) {
      if (!text_.is_hyphen(i)) {
        return hyphen;
      }
    }
    return end;
  }

  [[nodiscard]] bool is_blank(const Chunk& chunk) const {
    return strip(text_of_chunk(chunk)).empty();
  }

  [[nodiscard]] std::string_view text_of_chunk(const Chunk& chunk) const {
    const std::size_t begin = text_.offset(chunk.begin);
    return line_.substr(begin, text_.offset(chunk.end) - begin);
  }

  [[nodiscard]] std::string taken_text() const {
    std::string text;
    for (const Chunk& chunk : current_) {
      text.append(text_of_chunk(chunk));
    }
    return text;
  }

  Runtime& runtime_;
  std::string_view line_;
  Characters text_;
  WrapOptions options_;
  std::vector<Chunk> chunks_;
  std::vector<Chunk> current_;  // the line that is being filled
  std::size_t next_ = 0;
};

WrapOptions options_of(const BoundArguments& bound) {
  WrapOptions options;
  const std::int64_t width = bound.integer(0, 79);
  if (width <= 0) {
    fail("wordwrap: the width must be positive");
  }
  options.width = static_cast<std::size_t>(width);
  options.breaks_long_words = bound.flag(1, true);
  options.prefers_hyphens = bound.flag(3, true);
  // textwrap splits at hyphens only for the value true itself.
  options.splits_at_hyphens =
      bound.find(3) == nullptr || (bound.find(3)->is(Value::Kind::kBool) && bound.flag(3, true));
  return options;
}

}  // namespace

Value filter_wordwrap(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("wordwrap", arguments,
                             {"width", "break_long_words", "wrapstring", "break_on_hyphens"});
  require_defined(input);
  if (!input.is_string()) {
    fail("wordwrap: the input must be a str, not " + std::string(input.type_name()));
  }
  const bool has_separator = bound.find(2) != nullptr && !bound.find(2)->is_none();
  const Value separator = has_separator ? *bound.find(2) : Value("\n");
  if (!separator.is_string()) {
    fail("wordwrap: the wrapstring must be a str");
  }
  const auto lines = split_lines(input.as_string(), /*keep_ends=*/false);
  List wrapped;
  for (const std::string_view line : lines) {
    // The characters and chunks of a line need up to 32 bytes per byte.
    runtime.budget.allocate(32 * line.size() + sizeof(Value));
    const std::size_t before = wrapped.size();
    Wrapper(runtime, line, options_of(bound)).run(wrapped);
    if (wrapped.size() == before) {
      wrapped.emplace_back("");
    }
  }
  Arguments joined;
  joined.positional.push_back(make_sequence(runtime, std::move(wrapped)));
  return find_method(runtime, separator, "join").as_callable().call(joined);
}

}  // namespace tidemill::engines::chat
