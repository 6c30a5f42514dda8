// SPDX-License-Identifier: Apache-2.0
#include "engines/reward/rules.hpp"

#include <charconv>
#include <cmath>
#include <limits>

namespace tidemill::engines {
namespace {

constexpr std::string_view kUnicodeMinus = "\xE2\x88\x92";

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// Returns whether a sign that follows `c` is an operator rather than part of a number.
bool ends_operand(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == ')' || c == ']';
}

std::size_t count_digits(std::string_view text, std::size_t from) {
  std::size_t end = from;
  while (end < text.size() && is_digit(text[end])) {
    ++end;
  }
  return end - from;
}

// Reads the integer part that starts at `from`, such as "1234" or "1,234". Appends its digits to
// `plain` and returns its end. Commas before `ungrouped_until` are known not to group thousands.
// Without this bound, a long sequence of groups whose last one is incomplete would be scanned to
// its end again from each group.
std::size_t read_whole_part(std::string_view text, std::size_t from, std::size_t& ungrouped_until,
                            std::string& plain) {
  std::size_t at = from + count_digits(text, from);
  plain.append(text.substr(from, at - from));
  if (at - from < 1 || at - from > 3 || at < ungrouped_until) {
    return at;
  }
  // Commas group thousands only if exactly three digits follow each of them.
  std::size_t end = at;
  while (end < text.size() && text[end] == ',' && count_digits(text, end + 1) == 3) {
    end += 4;
  }
  if (end < text.size() && text[end] == ',' && count_digits(text, end + 1) > 0) {
    ungrouped_until = end;
    return at;
  }
  for (; at < end; at += 4) {
    plain.append(text.substr(at + 1, 3));
  }
  return end;
}

struct Scanned {
  double value;
  std::size_t end;
};

bool negated(std::string_view text, std::size_t number) {
  std::size_t sign = number;
  if (number >= 1 && text[number - 1] == '-') {
    sign = number - 1;
  } else if (number >= kUnicodeMinus.size() &&
             text.substr(number - kUnicodeMinus.size(), kUnicodeMinus.size()) == kUnicodeMinus) {
    sign = number - kUnicodeMinus.size();
  }
  return sign < number && (sign == 0 || !ends_operand(text[sign - 1]));
}

// Reads the number that starts at `from` with a digit or with a point before a digit.
Scanned scan_number(std::string_view text, std::size_t from, std::size_t& ungrouped_until) {
  std::string plain = negated(text, from) ? "-" : "";
  std::size_t at = read_whole_part(text, from, ungrouped_until, plain);
  if (at < text.size() && text[at] == '.' && count_digits(text, at + 1) > 0) {
    const std::size_t end = at + 1 + count_digits(text, at + 1);
    plain.append(text.substr(at, end - at));
    at = end;
  }
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    std::size_t digits = at + 1;
    if (digits < text.size() && (text[digits] == '+' || text[digits] == '-')) {
      ++digits;
    }
    if (const std::size_t count = count_digits(text, digits); count > 0) {
      plain.append(text.substr(at, digits + count - at));
      at = digits + count;
    }
  }
  double value = 0.0;
  const auto [end, error] = std::from_chars(plain.data(), plain.data() + plain.size(), value);
  if (error != std::errc{} || end != plain.data() + plain.size()) {
    value = std::numeric_limits<double>::quiet_NaN();
  }
  return {value, at};
}

class ExactMatchRule final : public RewardRule {
public:
  Result<double> score(const RewardRequest& request) override {
    const std::string_view reference = trim(request.reference_answer);
    if (reference.empty()) {
      return invalid_argument("the row has no reference answer (key `answer`)");
    }
    return trim(request.response) == reference ? 1.0 : 0.0;
  }
};

class NumberRule final : public RewardRule {
public:
  explicit NumberRule(double tolerance) : tolerance_(tolerance) {}

  Result<double> score(const RewardRequest& request) override {
    const std::optional<double> reference = last_number(request.reference_answer);
    if (!reference || !std::isfinite(*reference)) {
      return invalid_argument(trim(request.reference_answer).empty()
                                  ? "the row has no reference answer (key `answer`)"
                                  : "the row's reference answer has no number");
    }
    const std::optional<double> given = last_number(request.response);
    return given && std::fabs(*given - *reference) <= tolerance_ ? 1.0 : 0.0;
  }

private:
  double tolerance_;
};

}  // namespace

std::string_view trim(std::string_view text) noexcept {
  constexpr std::string_view kSpace = " \t\n\v\f\r";
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) {
    return {};
  }
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

std::optional<double> last_number(std::string_view text) {
  std::optional<double> last;
  std::size_t ungrouped_until = 0;
  for (std::size_t at = 0; at < text.size();) {
    const bool starts = is_digit(text[at]) || (text[at] == '.' && count_digits(text, at + 1) > 0);
    if (!starts) {
      ++at;
      continue;
    }
    const Scanned number = scan_number(text, at, ungrouped_until);
    last = number.value;
    at = number.end;
  }
  return last;
}

std::unique_ptr<RewardRule> make_exact_match_rule() {
  return std::make_unique<ExactMatchRule>();
}

Result<std::unique_ptr<RewardRule>> make_number_rule(double tolerance) {
  if (!std::isfinite(tolerance) || tolerance < 0.0) {
    return invalid_argument("tolerance: must be a finite number, at least 0");
  }
  return std::unique_ptr<RewardRule>(std::make_unique<NumberRule>(tolerance));
}

}  // namespace tidemill::engines
