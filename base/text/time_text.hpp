// SPDX-License-Identifier: Apache-2.0
// Times of day as text.
#pragma once

#include <cstdint>
#include <string>

namespace tidemill {

/// Returns a Unix time in seconds as local time, "YYYY-MM-DDTHH:MM:SS".
[[nodiscard]] std::string local_time_text(std::int64_t unix_time);

}  // namespace tidemill
