// SPDX-License-Identifier: Apache-2.0
// Private to engines/constraint/. JSON schemas without references and `allOf`.
#pragma once

#include <string>
#include <string_view>

#include "base/json/json.hpp"
#include "base/result.hpp"

namespace tidemill::engines {

/// Returns whether a keyword describes a schema without restricting values.
[[nodiscard]] bool is_annotation(std::string_view keyword) noexcept;

/// Returns whether a schema has a keyword that restricts values, besides `except`.
[[nodiscard]] bool restricts(const Json& schema, std::string_view except) noexcept;

/// Returns the part of `root` that the `$ref` of a schema names: "#", or "#/" and a JSON pointer.
/// Source: RFC 6901. Errors: `kInvalidArgument`.
[[nodiscard]] Result<const Json*> resolve_reference(const Json& root, std::string_view reference);

/// The number of schemas that the compilation of one document may merge.
inline constexpr int kMaxMerges = 1000;

/// Returns one object whose values satisfy `schema`, its `$ref` and all of its `allOf`. It has
/// neither of these and no annotations; `properties` may have them. Counts its merges in `merges`.
/// Errors: `kInvalidArgument`, naming the keyword that cannot be merged.
[[nodiscard]] Result<Json> flattened(const Json& root, const Json& schema, int& merges);

/// Returns one object whose values satisfy both of two objects that `flattened` has returned.
/// Errors: as `flattened`.
[[nodiscard]] Result<Json> merged(const Json& a, const Json& b);

}  // namespace tidemill::engines
