// SPDX-License-Identifier: Apache-2.0
// Translates regular expressions from Oniguruma's dialect to PCRE2's.
#include <algorithm>
#include <array>
#include <cstddef>

#include "engines/tokenizer/regex.hpp"

namespace tidemill::engines {
namespace {

constexpr std::string_view kWordClass = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_hex_digit(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

// A one-pass rewriter. `in_class_` tells whether the position is inside [...].
class Translator {
public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  Result<std::string> run() {
    while (pos_ < pattern_.size()) {
      TIDEMILL_RETURN_IF_ERROR(in_class_ ? class_item() : item());
    }
    if (in_class_) {
      return unsupported("an unclosed [");
    }
    return std::move(out_);
  }

private:
  [[nodiscard]] bool at(std::string_view text) const {
    return pattern_.substr(pos_, text.size()) == text;
  }

  [[nodiscard]] Status unsupported(std::string_view construct) const {
    return {Errc::kUnimplemented, "regular expression: " + std::string(construct) + " at offset " +
                                      std::to_string(pos_) + " is not supported"};
  }

  void copy(std::size_t count) {
    out_.append(pattern_.substr(pos_, count));
    pos_ += count;
  }

  Status item() {
    switch (pattern_[pos_]) {
      case '\\': return escape();
      case '[':
        in_class_ = true;
        copy(1);
        if (at("^")) {
          copy(1);
        }
        if (at("]")) {
          return unsupported("] first in a class");
        }
        return {};
      case '(': return group();
      case '{':
        // Oniguruma reads {,n} as {0,n}; PCRE2 10.42 reads it as literal text.
        if (at("{,")) {
          return unsupported("{,n}");
        }
        copy(1);
        return {};
      case '}':
        // In Ruby's syntax {n,m}+ repeats the repetition; in PCRE2 it is possessive.
        if (at("}+")) {
          return unsupported("{n,m}+");
        }
        copy(1);
        return {};
      default: copy(1); return {};
    }
  }

  Status group() {
    if (!at("(?")) {
      if (at("(*")) {
        return unsupported("(*");
      }
      copy(1);
      return {};
    }
    static constexpr std::array<std::string_view, 7> kGroups = {"(?:",  "(?i:", "(?=", "(?!",
                                                                "(?<=", "(?<!", "(?>"};
    for (const std::string_view opener : kGroups) {
      if (at(opener)) {
        copy(opener.size());
        return {};
      }
    }
    return unsupported("this kind of (?...) group");
  }

  Status class_item() {
    if (at("\\")) {
      return escape();
    }
    if (at("[")) {
      return unsupported("a [ inside a class");
    }
    if (at("&&")) {
      return unsupported("&& inside a class");
    }
    if (at("]")) {
      in_class_ = false;
    }
    copy(1);
    return {};
  }

  Status escape() {
    if (pos_ + 1 == pattern_.size()) {
      return unsupported("a final backslash");
    }
    const char c = pattern_[pos_ + 1];
    switch (c) {
      // PCRE2's own \s also matches U+180E.
      case 's': return replace(2, "\\p{White_Space}");
      case 'S': return replace(2, "\\P{White_Space}");
      case 'w':
        return replace(2,
                       in_class_ ? std::string(kWordClass) : "[" + std::string(kWordClass) + "]");
      case 'W':
        if (in_class_) {
          return unsupported("\\W inside a class");
        }
        return replace(2, "[^" + std::string(kWordClass) + "]");
      case 'd':
      case 'D':
      case 'r':
      case 'n':
      case 't':
      case 'f': copy(2); return {};
      case 'p':
      case 'P': return property();
      case 'x':
      case 'u': return code_point(c);
      default: break;
    }
    if (is_letter(c) || is_digit(c) || static_cast<unsigned char>(c) >= 0x80) {
      return unsupported(std::string("\\") + c);
    }
    copy(2);
    return {};
  }

  Status replace(std::size_t count, std::string_view by) {
    out_.append(by);
    pos_ += count;
    return {};
  }

  // Translates \p{...}. General categories such as \p{L} are copied. Other names are binary
  // properties or scripts; scripts get the prefix "sc:", because PCRE2 reads a bare script name as
  // Script_Extensions.
  Status property() {
    const std::size_t close = pattern_.find('}', pos_);
    if (pattern_.substr(pos_ + 2, 1) != "{" || close == std::string_view::npos) {
      return unsupported("\\p without {...}");
    }
    std::string_view name = pattern_.substr(pos_ + 3, close - pos_ - 3);
    std::string inside;
    if (!name.empty() && name.front() == '^') {
      inside = "^";
      name.remove_prefix(1);
    }
    if (name.empty()) {
      return unsupported("\\p{}");
    }
    for (const char c : name) {
      if (!is_letter(c) && c != '_') {
        return unsupported("this \\p{...}");
      }
    }
    static constexpr std::array<std::string_view, 5> kBinary = {"Alphabetic", "Any", "Emoji",
                                                                "Join_Control", "White_Space"};
    const bool is_binary = std::find(kBinary.begin(), kBinary.end(), name) != kBinary.end();
    if (name.size() > 2 && !is_binary) {
      inside += "sc:";
    }
    inside += name;
    out_.append(pattern_.substr(pos_, 2)).append("{").append(inside).append("}");
    pos_ = close + 1;
    return {};
  }

  // Translates \xHH, \x{H...} and \uHHHH.
  Status code_point(char kind) {
    const std::size_t digits = pos_ + 2;
    std::size_t end = digits;
    if (kind == 'x' && pattern_.substr(digits, 1) == "{") {
      end = digits + 1;
      while (end < pattern_.size() && is_hex_digit(pattern_[end])) {
        ++end;
      }
      if (end == digits + 1 || pattern_.substr(end, 1) != "}") {
        return unsupported("this \\x{...}");
      }
      copy(end + 1 - pos_);
      return {};
    }
    const std::size_t want = kind == 'u' ? 4 : 2;
    while (end < pattern_.size() && end - digits < want && is_hex_digit(pattern_[end])) {
      ++end;
    }
    if (end - digits != want) {
      return unsupported(std::string("this \\") + kind);
    }
    // Oniguruma reads \x above 7F as a byte, PCRE2 as a character.
    if (kind == 'x' && pattern_[digits] > '7') {
      return unsupported("\\x above 7F");
    }
    return replace(2 + want, "\\x{" + std::string(pattern_.substr(digits, want)) + "}");
  }

  std::string_view pattern_;
  std::size_t pos_ = 0;
  bool in_class_ = false;
  std::string out_;
};

}  // namespace

Result<std::string> translate_regex(std::string_view pattern) {
  return Translator(pattern).run();
}

}  // namespace tidemill::engines
