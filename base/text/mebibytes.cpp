// SPDX-License-Identifier: Apache-2.0
#include "base/text/mebibytes.hpp"

#include <cstdio>

namespace tidemill {

std::string mebibytes(std::int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f", static_cast<double>(bytes) / (1U << 20U));
  return text;
}

std::string mebibytes_text(std::int64_t bytes) {
  return mebibytes(bytes) + " MiB";
}

}  // namespace tidemill
