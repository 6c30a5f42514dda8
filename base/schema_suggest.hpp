// SPDX-License-Identifier: Apache-2.0
// "Did you mean": the nearest of some names, and quoting what somebody wrote.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tidemill::schema {

/// Returns the candidate that `text` most likely stands for, or "" if none is near: at most a third
/// of its letters (at least one) inserted, left out, changed or swapped with their neighbour.
[[nodiscard]] std::string closest_name(std::string_view text,
                                       const std::vector<std::string>& candidates);

/// Returns `text` for an error message: control characters replaced, at most 60 bytes.
[[nodiscard]] std::string clipped(std::string_view text);

}  // namespace tidemill::schema
