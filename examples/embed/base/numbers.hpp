// SPDX-License-Identifier: Apache-2.0
// Shows that a program may have its own folder base/, which does not conflict with Tidemill's.
#pragma once

#include <optional>
#include <string_view>

namespace closeness {

/// Returns the non-negative integer at the end of `text`, or nothing if `text` does not end with
/// one.
[[nodiscard]] std::optional<double> trailing_number(std::string_view text);

}  // namespace closeness
