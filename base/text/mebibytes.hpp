// SPDX-License-Identifier: Apache-2.0
// Writes sizes for people.
#pragma once

#include <cstdint>
#include <string>

namespace tidemill {

/// Returns `bytes` in MiB with one decimal, such as "26.4".
[[nodiscard]] std::string mebibytes(std::int64_t bytes);

/// Returns the same with the unit: "26.4 MiB".
[[nodiscard]] std::string mebibytes_text(std::int64_t bytes);

}  // namespace tidemill
