// SPDX-License-Identifier: Apache-2.0
// Schemas as editors read them: JSON Schema, with which they complete and check YAML.
#pragma once

#include <string_view>

#include "base/json.hpp"
#include "base/schema_types.hpp"

namespace tidemill {

/// Returns the JSON Schema of the files that `root` reads: types, limits, defaults, names,
/// meanings; a struct that chooses is one alternative for each of its kinds; unknown keys are
/// refused.
///
/// It takes every file that the schema takes. It cannot say rules over several keys, and to it 1.0
/// is an integer; of what is no JSON, such as a key written twice, it knows nothing.
/// Source: JSON Schema draft-07, the newest that every release of yaml-language-server reads.
[[nodiscard]] Json json_schema(const schema::StructSchema& root, std::string_view title);

}  // namespace tidemill
