// SPDX-License-Identifier: Apache-2.0
#include "base/numbers.hpp"

#include <charconv>

namespace closeness {

std::optional<double> trailing_number(std::string_view text) {
  const std::size_t before = text.find_last_not_of("0123456789");
  const std::string_view digits = before == std::string_view::npos ? text : text.substr(before + 1);
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return error == std::errc() && !digits.empty() ? std::optional(value) : std::nullopt;
}

}  // namespace closeness
