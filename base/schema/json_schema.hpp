// SPDX-License-Identifier: Apache-2.0
// JSON Schema, with which editors complete and check YAML files.
#pragma once

#include <string_view>

#include "base/json/json.hpp"
#include "base/schema/types.hpp"

namespace tidemill {

/// Returns the JSON Schema of the files that `root` reads: types, limits, defaults, names and
/// meanings. A struct with kinds becomes one alternative per kind. Unknown keys are refused.
///
/// The result accepts every file that `root` accepts, and some more: it cannot express rules over
/// several keys, it takes 1.0 for an integer, and it does not see what JSON cannot represent, such
/// as a key that is written twice.
/// Source: JSON Schema draft-07, the newest that every release of yaml-language-server reads.
[[nodiscard]] Json json_schema(const schema::StructSchema& root, std::string_view title);

}  // namespace tidemill
