// SPDX-License-Identifier: Apache-2.0
#include "base/text/time_text.hpp"

#include <array>
#include <ctime>

namespace tidemill {

std::string local_time_text(std::int64_t unix_time) {
  const auto time = static_cast<std::time_t>(unix_time);
  std::tm parts{};
  ::localtime_r(&time, &parts);
  std::array<char, 32> text{};
  const std::size_t size = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S", &parts);
  return {text.data(), size};
}

}  // namespace tidemill
