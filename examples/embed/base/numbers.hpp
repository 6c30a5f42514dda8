// SPDX-License-Identifier: Apache-2.0
// A folder called base/ of the program's own: it does not get in the way of Tidemill's.
#pragma once

#include <optional>
#include <string_view>

namespace closeness {

/// Returns the whole number that `text` ends with, if it ends with one.
[[nodiscard]] std::optional<double> trailing_number(std::string_view text);

}  // namespace closeness
