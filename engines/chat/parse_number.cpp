// SPDX-License-Identifier: Apache-2.0
#include "engines/chat/parse_number.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string>

#include "engines/chat/unicode.hpp"

namespace tidemill::engines::chat {

std::optional<double> parse_float(std::string_view text) {
  std::string plain(strip(text));
  for (std::size_t i = 0; i < plain.size(); ++i) {
    if (plain[i] != '_') {
      continue;
    }
    const auto digit = [&plain](std::size_t k) {
      return k < plain.size() && plain[k] >= '0' && plain[k] <= '9';
    };
    if (i == 0 || !digit(i - 1) || !digit(i + 1)) {
      return std::nullopt;
    }
  }
  plain.erase(std::remove(plain.begin(), plain.end(), '_'), plain.end());
  const bool has_plus = !plain.empty() && plain.front() == '+';
  if (has_plus) {
    plain.erase(0, 1);
  }
  if (has_plus && !plain.empty() && plain.front() == '-') {
    return std::nullopt;
  }
  double value = 0;
  const auto parsed = std::from_chars(plain.data(), plain.data() + plain.size(), value);
  if (parsed.ptr != plain.data() + plain.size() || plain.empty()) {
    return std::nullopt;
  }
  if (parsed.ec == std::errc::result_out_of_range) {
    return std::strtod(plain.c_str(), nullptr);
  }
  if (parsed.ec != std::errc()) {
    return std::nullopt;
  }
  return value;
}

IntParse parse_int(std::string_view text, int base, std::int64_t& value) {
  std::string plain(strip(text));
  std::string sign;
  if (!plain.empty() && (plain[0] == '-' || plain[0] == '+')) {
    if (plain[0] == '-') {
      sign = "-";
    }
    plain.erase(0, 1);
  }
  const auto has_prefix = [&plain](char letter) {
    return plain.size() > 2 && plain[0] == '0' && (plain[1] | 0x20) == letter;
  };
  if ((base == 16 && has_prefix('x')) || (base == 8 && has_prefix('o')) ||
      (base == 2 && has_prefix('b'))) {
    plain.erase(0, 2);
  }
  const bool bad_underscore = plain.empty() || plain.front() == '_' || plain.back() == '_' ||
                              plain.find("__") != std::string::npos || plain.front() == '-' ||
                              plain.front() == '+';
  if (bad_underscore) {
    return IntParse::kNoInteger;
  }
  plain.erase(std::remove(plain.begin(), plain.end(), '_'), plain.end());
  plain.insert(0, sign);
  const auto parsed = std::from_chars(plain.data(), plain.data() + plain.size(), value, base);
  if (parsed.ptr != plain.data() + plain.size()) {
    return IntParse::kNoInteger;
  }
  return parsed.ec == std::errc() ? IntParse::kOk : IntParse::kTooLarge;
}

Value parsed_integer(Runtime& runtime, const Value& text) {
  runtime.budget.scan(text.as_string().size());
  std::int64_t value = 0;
  switch (parse_int(text.as_string(), 10, value)) {
    case IntParse::kOk: return value;
    case IntParse::kTooLarge: fail("an integer result does not fit in 64 bits");
    case IntParse::kNoInteger: break;
  }
  fail("invalid literal for int()");
}

Value parsed_number(Runtime& runtime, const Value& text) {
  runtime.budget.scan(text.as_string().size());
  const auto number = parse_float(text.as_string());
  if (!number) {
    fail("could not convert string to float");
  }
  return *number;
}

}  // namespace tidemill::engines::chat
