// SPDX-License-Identifier: Apache-2.0
// A hand-written scanner with the white space rules of Jinja 3.1.
#include "engines/chat/lexer.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "base/text/utf8.hpp"
#include "engines/chat/budget.hpp"
#include "engines/chat/unicode.hpp"

namespace tidemill::engines::chat {
namespace {

constexpr std::size_t kNotFound = std::string_view::npos;

// Converts all line ends to \n, and removes one at the end of the template.
std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out.push_back(source[i]);
    } else {
      out.push_back('\n');
      if (i + 1 < source.size() && source[i + 1] == '\n') {
        ++i;
      }
    }
  }
  if (!out.empty() && out.back() == '\n') {
    out.pop_back();
  }
  return out;
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}
bool is_name_character(char c) {
  return is_name_start(c) || is_digit(c);
}

class Lexer {
public:
  explicit Lexer(std::string_view source) : source_(normalize_newlines(source)), text_(source_) {}

  std::vector<Token> run() {
    while (pos_ < text_.size()) {
      data_and_tag();
    }
    push(Token::Kind::kEnd);
    return std::move(tokens_);
  }

private:
  // How white space next to a tag is treated.
  enum class Sign : std::uint8_t { kNone, kStrip, kKeep };

  [[noreturn]] void syntax(const std::string& message) const {
    throw TemplateError(TemplateError::Kind::kSyntax, message, line_);
  }

  [[nodiscard]] bool at(std::string_view what, std::size_t offset = 0) const {
    return text_.substr(std::min(text_.size(), pos_ + offset), what.size()) == what;
  }

  void push(Token::Kind kind, std::string text = {}) {
    tokens_.push_back({kind, line_, std::move(text), {}});
  }

  // Moves past `count` bytes and counts their lines.
  void advance(std::size_t count) {
    const std::string_view skipped = text_.substr(pos_, count);
    line_ += static_cast<int>(std::count(skipped.begin(), skipped.end(), '\n'));
    pos_ += skipped.size();
    if (!skipped.empty()) {
      line_starting_ = skipped.back() == '\n';
    }
  }

  [[nodiscard]] std::size_t space_end(std::size_t from) const {
    while (from < text_.size()) {
      const Utf8Step step = read_utf8(text_, from);
      if (!is_space(step.code_point)) {
        break;
      }
      from += step.length;
    }
    return from;
  }

  // Returns the offset after `word` and the white space around it, or kNotFound if the text at
  // `from` does not begin with them.
  [[nodiscard]] std::size_t word_end(std::size_t from, std::string_view word) const {
    from = space_end(from);
    if (text_.substr(from, word.size()) != word) {
      return kNotFound;
    }
    return space_end(from + word.size());
  }

  [[nodiscard]] Sign sign_at(std::size_t offset) const {
    if (text_.substr(offset, 1) == "-") {
      return Sign::kStrip;
    }
    if (text_.substr(offset, 1) == "+") {
      return Sign::kKeep;
    }
    return Sign::kNone;
  }

  // Emits the text up to the tag at `tag`.
  void data_until(std::size_t tag, Sign sign, bool is_variable) {
    std::string_view data = text_.substr(pos_, tag - pos_);
    if (sign == Sign::kStrip) {
      data = strip(data, StripEnds::kRight);
    } else if (sign == Sign::kNone && !is_variable) {
      const std::size_t newline = data.rfind('\n');
      const std::size_t begin = newline == kNotFound ? 0 : newline + 1;
      if ((newline != kNotFound || line_starting_) && strip(data.substr(begin)).empty()) {
        data = data.substr(0, begin);
      }
    }
    if (!data.empty()) {
      push(Token::Kind::kData, std::string(data));
    }
    advance(tag - pos_);
  }

  void data_and_tag() {
    std::size_t tag = pos_;
    for (;; ++tag) {
      tag = text_.find('{', tag);
      if (tag == kNotFound) {
        push(Token::Kind::kData, std::string(text_.substr(pos_)));
        advance(text_.size() - pos_);
        return;
      }
      const std::string_view opener = text_.substr(tag, 2);
      if (opener == "{%" || opener == "{{" || opener == "{#") {
        break;
      }
    }
    const char kind = text_[tag + 1];
    const Sign sign = sign_at(tag + 2);
    data_until(tag, sign, kind == '{');
    const std::size_t opener_size = sign == Sign::kNone ? 2 : 3;
    if (kind == '#') {
      return comment(opener_size);
    }
    if (kind == '%' && raw(opener_size)) {
      return;
    }
    push(kind == '{' ? Token::Kind::kVariableBegin : Token::Kind::kBlockBegin);
    advance(opener_size);
    inside_tag(kind == '{');
  }

  void comment(std::size_t opener_size) {
    const int begin_line = line_;
    advance(opener_size);
    const std::size_t end = text_.find("#}", pos_);
    if (end == kNotFound) {
      line_ = begin_line;
      syntax("missing end of comment tag");
    }
    const char before = end > pos_ ? text_[end - 1] : ' ';
    advance(end + 2 - pos_);
    after_block(before == '-' ? Sign::kStrip : before == '+' ? Sign::kKeep : Sign::kNone);
  }

  // Handles white space after a block, comment or raw block.
  void after_block(Sign sign) {
    if (sign == Sign::kStrip) {
      advance(space_end(pos_) - pos_);
    } else if (sign == Sign::kNone && at("\n")) {
      advance(1);
    }
  }

  // Reads {% raw %}...{% endraw %}. Returns whether there is one at the current position.
  bool raw(std::size_t opener_size) {
    const std::size_t word = word_end(pos_ + opener_size, "raw");
    if (word == kNotFound) {
      return false;
    }
    const bool strips = text_.substr(word, 3) == "-%}";
    if (!strips && text_.substr(word, 2) != "%}") {
      return false;
    }
    const int begin_line = line_;
    advance(word + (strips ? 3 : 2) - pos_);
    if (strips) {
      advance(space_end(pos_) - pos_);
    }
    for (std::size_t tag = text_.find("{%", pos_); tag != kNotFound;
         tag = text_.find("{%", tag + 1)) {
      const Sign sign = sign_at(tag + 2);
      const std::size_t end = word_end(tag + (sign == Sign::kNone ? 2U : 3U), "endraw");
      if (end == kNotFound) {
        continue;
      }
      const Sign end_sign = sign_at(end);
      const std::size_t close = end + (end_sign == Sign::kNone ? 0U : 1U);
      if (text_.substr(close, 2) != "%}") {
        continue;
      }
      data_until(tag, sign, /*is_variable=*/false);
      advance(close + 2 - pos_);
      after_block(end_sign);
      return true;
    }
    line_ = begin_line;
    syntax("missing end of raw directive");
  }

  // Reads the tokens up to the end of the tag. Inside brackets, the end is not recognized.
  void inside_tag(bool is_variable) {
    const std::string_view close = is_variable ? "}}" : "%}";
    std::string brackets;
    while (true) {
      if (pos_ == text_.size()) {
        syntax(is_variable ? "unexpected end of template, expected '}}'"
                           : "unexpected end of template, expected '%}'");
      }
      if (brackets.empty()) {
        Sign sign = sign_at(pos_);
        if (is_variable && sign == Sign::kKeep) {
          sign = Sign::kNone;
        }
        const std::size_t offset = sign == Sign::kNone ? 0 : 1;
        if (at(close, offset)) {
          push(is_variable ? Token::Kind::kVariableEnd : Token::Kind::kBlockEnd);
          advance(offset + close.size());
          // The newline after a variable is kept.
          after_block(is_variable && sign == Sign::kNone ? Sign::kKeep : sign);
          return;
        }
      }
      const std::size_t space = space_end(pos_);
      if (space > pos_) {
        advance(space - pos_);
      } else if (is_digit(text_[pos_])) {
        number();
      } else if (is_name_start(text_[pos_])) {
        name();
      } else if (text_[pos_] == '"' || text_[pos_] == '\'') {
        string();
      } else {
        operation(brackets);
      }
    }
  }

  void name() {
    std::size_t end = pos_;
    while (end < text_.size() && is_name_character(text_[end])) {
      ++end;
    }
    push(Token::Kind::kName, std::string(text_.substr(pos_, end - pos_)));
    advance(end - pos_);
  }

  void operation(std::string& brackets) {
    static constexpr std::array<std::string_view, 6> kDouble = {"//", "**", "==", "!=", ">=", "<="};
    static constexpr std::string_view kSingle = "+-/*%~[](){}><=.:|,;";
    for (const std::string_view op : kDouble) {
      if (at(op)) {
        push(Token::Kind::kOperator, std::string(op));
        return advance(2);
      }
    }
    const char c = text_[pos_];
    if (kSingle.find(c) == kNotFound) {
      syntax(std::string("unexpected character '") + c + "'");
    }
    if (c == '(' || c == '[' || c == '{') {
      brackets.push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
    } else if (c == ')' || c == ']' || c == '}') {
      if (brackets.empty()) {
        syntax(std::string("unexpected '") + c + "'");
      }
      if (brackets.back() != c) {
        syntax(std::string("unexpected '") + c + "', expected '" + brackets.back() + "'");
      }
      brackets.pop_back();
    }
    push(Token::Kind::kOperator, std::string(1, c));
    advance(1);
  }

  // Returns the end of digits that may be separated by single underscores.
  template <class IsDigit>
  [[nodiscard]] std::size_t digits_end(std::size_t from, const IsDigit& is_one) const {
    while (from < text_.size()) {
      const bool separated = text_[from] == '_' && from + 1 < text_.size();
      if (!is_one(text_[from]) && !(separated && is_one(text_[from + 1]))) {
        break;
      }
      ++from;
    }
    return from;
  }

  void push_literal(Value value, std::size_t size) {
    push(Token::Kind::kLiteral);
    tokens_.back().literal = std::move(value);
    advance(size);
  }

  void number() {
    const auto based = [this](std::string_view lower, std::string_view upper, int base,
                              auto is_one) {
      if (!at(lower) && !at(upper)) {
        return false;
      }
      const std::size_t end = digits_end(pos_ + 2, is_one);
      if (end == pos_ + 2) {
        return false;
      }
      integer(text_.substr(pos_ + 2, end - pos_ - 2), base, end - pos_);
      return true;
    };
    if (based("0x", "0X", 16,
              [](char c) {
                return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
              }) ||
        based("0o", "0O", 8, [](char c) { return c >= '0' && c <= '7'; }) ||
        based("0b", "0B", 2, [](char c) { return c == '0' || c == '1'; })) {
      return;
    }
    std::size_t end = digits_end(pos_, is_digit);
    bool is_float = false;
    const bool after_dot = pos_ > 0 && text_[pos_ - 1] == '.';
    const auto digit_at = [this](std::size_t i) { return i < text_.size() && is_digit(text_[i]); };
    if (!after_dot && end < text_.size() && text_[end] == '.' && digit_at(end + 1)) {
      end = digits_end(end + 1, is_digit);
      is_float = true;
    }
    if (!after_dot && end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
      std::size_t digits = end + 1;
      if (digits < text_.size() && (text_[digits] == '+' || text_[digits] == '-')) {
        ++digits;
      }
      if (digit_at(digits)) {
        end = digits_end(digits, is_digit);
        is_float = true;
      }
    }
    const std::string_view spelled = text_.substr(pos_, end - pos_);
    if (!is_float) {
      return integer(spelled, 10, spelled.size());
    }
    std::string plain(spelled);
    plain.erase(std::remove(plain.begin(), plain.end(), '_'), plain.end());
    double value = 0;
    if (std::from_chars(plain.data(), plain.data() + plain.size(), value).ec != std::errc()) {
      syntax("number " + plain + " is out of range");
    }
    push_literal(value, spelled.size());
  }

  void integer(std::string_view digits, int base, std::size_t size) {
    std::string plain(digits);
    plain.erase(std::remove(plain.begin(), plain.end(), '_'), plain.end());
    std::int64_t value = 0;
    if (std::from_chars(plain.data(), plain.data() + plain.size(), value, base).ec != std::errc()) {
      syntax("integer " + plain + " does not fit in 64 bits");
    }
    if (base == 10 && plain.size() > 1 && plain.front() == '0' && value != 0) {
      syntax("integer " + plain + " has a leading zero");
    }
    push_literal(value, size);
  }

  void string() {
    const char quote = text_[pos_];
    std::string value;
    std::size_t i = pos_ + 1;
    while (i < text_.size() && text_[i] != quote) {
      if (text_[i] == '\\') {
        i = escape(i + 1, value);
      } else {
        value.push_back(text_[i++]);
      }
    }
    if (i >= text_.size()) {
      syntax("unterminated string");
    }
    push_literal(Value(std::move(value)), i + 1 - pos_);
  }

  // Appends the character of the escape whose text after the backslash begins at `i`. Returns the
  // offset after the escape.
  std::size_t escape(std::size_t i, std::string& value) const {
    if (i >= text_.size()) {
      syntax("unterminated string");
    }
    const char c = text_[i];
    static constexpr std::string_view kLetters = "\\'\"abfnrtv";
    static constexpr std::string_view kMeanings = "\\'\"\a\b\f\n\r\t\v";
    if (c == '\n') {
      return i + 1;
    }
    if (const std::size_t known = kLetters.find(c); known != kNotFound) {
      value.push_back(kMeanings[known]);
      return i + 1;
    }
    if (c == 'x') {
      return numeric_escape(i + 1, 2, 2, 16, value);
    }
    if (c == 'u') {
      return numeric_escape(i + 1, 4, 4, 16, value);
    }
    if (c == 'U') {
      return numeric_escape(i + 1, 8, 8, 16, value);
    }
    if (c >= '0' && c <= '7') {
      return numeric_escape(i, 1, 3, 8, value);
    }
    if (c == 'N') {
      syntax("\\N escapes are not supported");
    }
    value.push_back('\\');  // like Python, keeps an unknown escape
    return i;
  }

  std::size_t numeric_escape(std::size_t i, std::size_t min, std::size_t max, int base,
                             std::string& value) const {
    const std::string_view digits = text_.substr(i, max);
    std::uint32_t code = 0;
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), code, base);
    const auto count = static_cast<std::size_t>(parsed.ptr - digits.data());
    if (count < min) {
      syntax("truncated escape in a string");
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) {
      syntax("an escape in a string is not a valid character");
    }
    append_utf8(code, value);
    return i + count;
  }

  std::string source_;
  std::string_view text_;
  std::size_t pos_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize_template(std::string_view source) {
  return Lexer(source).run();
}

}  // namespace tidemill::engines::chat
