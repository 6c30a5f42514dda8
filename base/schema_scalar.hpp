// SPDX-License-Identifier: Apache-2.0
// Scalars as files write them: which texts are numbers, switches and names, and how to say so.
#pragma once

#include <optional>
#include <string>

#include "base/schema_node.hpp"
#include "base/schema_types.hpp"

namespace tidemill::schema {

/// Returns the scalar that `node` holds for `value`, if it is of its type and inside its limits.
///
/// Integers have no fraction, exponent or leading zero; numbers are finite; switches are `true` and
/// `false` alone; bytes may end in KiB, MiB, GiB or TiB. Quoted text is text.
[[nodiscard]] std::optional<Scalar> parse_scalar(const ValueSchema& value, const ConfigNode& node);

/// Returns what stands in `node`, for a message: "12", "\"12\"", "a list", "nothing".
[[nodiscard]] std::string found_phrase(const ConfigNode& node);

/// Returns "needs TYPE, found VALUE", with the name that was probably meant.
[[nodiscard]] std::string mistyped_phrase(const ValueSchema& value, const ConfigNode& node);

}  // namespace tidemill::schema
