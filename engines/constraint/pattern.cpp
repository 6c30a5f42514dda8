// SPDX-License-Identifier: Apache-2.0
#include "engines/constraint/pattern.hpp"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/text/utf8.hpp"

namespace tidemill::engines {
namespace {

constexpr char32_t kLastCodePoint = 0x10FFFF;
constexpr std::size_t kMaxPatternBytes = 4096;
constexpr int kMaxGroups = 32;            // inside each other
constexpr std::int32_t kMaxCount = 4096;  // of a quantifier

// A part of a pattern: a set of characters, or parts in a row, or alternatives.
struct Part {
  enum class Kind : std::uint8_t { kSet, kSequence, kChoice };
  Kind kind = Kind::kSequence;
  CodePoints set;
  std::vector<Part> parts;
  std::int32_t min = 1;
  std::int32_t max = 1;
};

// Sorts the ranges and joins those that touch.
CodePoints normalized(CodePoints set) {
  std::ranges::sort(set, {}, &CodePointRange::first);
  CodePoints out;
  for (const CodePointRange& range : set) {
    if (!out.empty() && range.first <= out.back().last + 1) {
      out.back().last = std::max(out.back().last, range.last);
    } else {
      out.push_back(range);
    }
  }
  return out;
}

CodePoints complement(const CodePoints& set) {
  CodePoints out;
  char32_t next = 0;
  for (const CodePointRange& range : normalized(set)) {
    if (range.first > next) {
      out.push_back({next, range.first - 1});
    }
    next = range.last + 1;
  }
  if (next <= kLastCodePoint) {
    out.push_back({next, kLastCodePoint});
  }
  return out;
}

const CodePoints kDigits{{'0', '9'}};
const CodePoints kWord{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CodePoints kSpace{{'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680},
                        {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
                        {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
const CodePoints kLineEnds{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
const CodePoints kAll{{0, kLastCodePoint}};

// Returns the set that an escaped letter stands for.
std::optional<CodePoints> class_of(char32_t letter) {
  switch (letter) {
    case 'd': return kDigits;
    case 'D': return complement(kDigits);
    case 'w': return kWord;
    case 'W': return complement(kWord);
    case 's': return kSpace;
    case 'S': return complement(kSpace);
    default: return std::nullopt;
  }
}

class PatternParser {
public:
  explicit PatternParser(std::string_view pattern) : pattern_(pattern) {}

  Result<Part> parse() {
    if (pattern_.size() > kMaxPatternBytes) {
      return invalid_argument("a pattern has at most " + std::to_string(kMaxPatternBytes) +
                              " bytes");
    }
    if (find_invalid_utf8(pattern_).has_value()) {
      return invalid_argument("a pattern must be valid UTF-8");
    }
    Part part = choice(true);
    if (!failed_ && at_ < pattern_.size()) {
      fail("an unmatched )");
    }
    if (failed_) {
      return invalid_argument(problem_);
    }
    return part;
  }

private:
  void fail(const std::string& what) {
    if (!failed_) {
      failed_ = true;
      problem_ = "offset " + std::to_string(at_) + ": " + what;
    }
    at_ = pattern_.size();
  }
  [[nodiscard]] bool sees(std::string_view text) const {
    return pattern_.substr(at_).starts_with(text);
  }
  bool skip(std::string_view text) {
    const bool found = sees(text);
    at_ += found ? text.size() : 0;
    return found;
  }
  char32_t take() {
    const Utf8Step step = read_utf8(pattern_, at_);
    at_ += step.length;
    return step.code_point;
  }

  Part choice(bool is_whole) {
    Part out;
    out.kind = Part::Kind::kChoice;
    do {
      out.parts.push_back(sequence(is_whole));
    } while (skip("|"));
    return out;
  }

  Part sequence(bool is_whole) {
    Part out;
    const Part anything{Part::Kind::kSet, kAll, {}, 0, GrammarBuilder::kUnbounded};
    if (is_whole && !skip("^")) {
      out.parts.push_back(anything);
    }
    bool ends = false;
    while (at_ < pattern_.size() && !sees("|") && !sees(")")) {
      if (is_whole && skip("$")) {
        ends = true;
        if (at_ < pattern_.size() && !sees("|")) {
          fail("$ is supported only at the end");
        }
        break;
      }
      out.parts.push_back(quantified());
    }
    if (is_whole && !ends) {
      out.parts.push_back(anything);
    }
    return out;
  }

  Part quantified() {
    Part part = atom();
    std::optional<std::pair<std::int32_t, std::int32_t>> count;
    if (skip("*")) {
      count = {0, GrammarBuilder::kUnbounded};
    } else if (skip("+")) {
      count = {1, GrammarBuilder::kUnbounded};
    } else if (skip("?")) {
      count = {0, 1};
    } else if (skip("{")) {
      count = braces();
    }
    if (!count.has_value()) {
      return part;
    }
    skip("?");  // a lazy quantifier matches the same texts
    if (sees("*") || sees("+") || sees("?") || sees("{")) {
      fail("a quantifier must follow a character or a group");
    }
    Part out;
    out.parts.push_back(std::move(part));
    out.min = count->first;
    out.max = count->second;
    return out;
  }

  std::int32_t integer() {
    std::int32_t value = 0;
    const std::size_t begin = at_;
    while (at_ < pattern_.size() && pattern_[at_] >= '0' && pattern_[at_] <= '9') {
      value = std::min(value * 10 + (pattern_[at_++] - '0'), kMaxCount + 1);
    }
    if (at_ == begin || value > kMaxCount) {
      fail("a count must be an integer up to " + std::to_string(kMaxCount));
    }
    return value;
  }

  std::pair<std::int32_t, std::int32_t> braces() {
    const std::int32_t min = integer();
    std::int32_t max = min;
    if (skip(",")) {
      max = sees("}") ? GrammarBuilder::kUnbounded : integer();
    }
    if (!skip("}") || max < min) {
      fail("a count must be {m}, {m,} or {m,n} with m <= n");
    }
    return {min, max};
  }

  Part atom() {
    if (skip("(")) {
      return group();
    }
    if (skip("[")) {
      return {Part::Kind::kSet, bracket(), {}, 1, 1};
    }
    if (skip(".")) {
      return {Part::Kind::kSet, complement(kLineEnds), {}, 1, 1};
    }
    if (skip("\\")) {
      return {Part::Kind::kSet, escape(), {}, 1, 1};
    }
    for (const std::string_view special : {"^", "$", "*", "+", "?", "{", "}", "]"}) {
      if (sees(special)) {
        fail(std::string(special) + " is not supported here");
        return {};
      }
    }
    const char32_t c = take();
    return {Part::Kind::kSet, {{c, c}}, {}, 1, 1};
  }

  Part group() {
    if (skip("?") && !skip(":")) {
      fail("only groups without names and lookaround are supported");
      return {};
    }
    if (++depth_ > kMaxGroups) {
      fail("more than " + std::to_string(kMaxGroups) + " groups inside each other");
      return {};
    }
    Part out = choice(false);
    --depth_;
    if (!skip(")")) {
      fail("a group without )");
    }
    return out;
  }

  char32_t hex(std::size_t count) {
    char32_t value = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const char c = at_ < pattern_.size() ? pattern_[at_] : '\0';
      const bool digit = c >= '0' && c <= '9';
      const bool letter = (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
      if (!digit && !letter) {
        fail("hexadecimal digits must follow");
        return 0;
      }
      value = value * 16 + static_cast<char32_t>(digit ? c - '0' : (c | 0x20) - 'a' + 10);
      ++at_;
    }
    return value;
  }

  // Returns what an escape stands for; the backslash has been read.
  CodePoints escape() {
    if (at_ >= pattern_.size()) {
      fail("a backslash at the end");
      return {};
    }
    const char32_t c = take();
    if (auto set = class_of(c)) {
      return *set;
    }
    char32_t one = c;
    switch (c) {
      case 't': one = '\t'; break;
      case 'n': one = '\n'; break;
      case 'r': one = '\r'; break;
      case 'f': one = '\f'; break;
      case 'v': one = '\v'; break;
      case 'x': one = hex(2); break;
      case 'u': one = hex(4); break;
      default:
        if (c < 0x80 && contains_word(c)) {
          fail("an escape that is not supported");
        }
    }
    return {{one, one}};
  }

  static bool contains_word(char32_t c) {
    return std::ranges::any_of(
        kWord, [&](const CodePointRange& range) { return range.first <= c && c <= range.last; });
  }

  CodePoints bracket() {
    const bool negates = skip("^");
    CodePoints set;
    while (at_ < pattern_.size() && !sees("]")) {
      const CodePoints first = bracket_item();
      if (sees("-") && !sees("-]") && at_ + 1 < pattern_.size()) {
        skip("-");
        const CodePoints last = bracket_item();
        if (!is_single(first) || !is_single(last) || last[0].first < first[0].first) {
          fail("a range must be of two characters in order");
          return {};
        }
        set.push_back({first[0].first, last[0].last});
      } else {
        set.insert(set.end(), first.begin(), first.end());
      }
    }
    if (!skip("]")) {
      fail("a class without ]");
    }
    return negates ? complement(set) : normalized(std::move(set));
  }

  static bool is_single(const CodePoints& set) {
    return set.size() == 1 && set[0].first == set[0].last;
  }

  CodePoints bracket_item() {
    if (skip("\\")) {
      return skip("b") ? CodePoints{{'\b', '\b'}} : escape();
    }
    const char32_t c = take();
    return {{c, c}};
  }

  std::string_view pattern_;
  std::size_t at_ = 0;
  int depth_ = 0;
  bool failed_ = false;
  std::string problem_;
};

Fragment fragment_of(const Part& part, GrammarBuilder& builder, JsonRules& rules) {
  const auto once = [&]() -> Fragment {
    if (part.kind == Part::Kind::kSet) {
      return rules.character(part.set);
    }
    std::vector<Fragment> made;
    for (const Part& one : part.parts) {
      made.push_back(fragment_of(one, builder, rules));
    }
    return part.kind == Part::Kind::kChoice ? builder.choice(made) : builder.sequence(made);
  };
  return part.min == 1 && part.max == 1 ? once() : builder.repeat(part.min, part.max, once);
}

}  // namespace

Result<Fragment> pattern_content(std::string_view pattern, GrammarBuilder& builder,
                                 JsonRules& rules) {
  TIDEMILL_ASSIGN_OR_RETURN(const Part part, PatternParser(pattern).parse());
  return fragment_of(part, builder, rules);
}

}  // namespace tidemill::engines
