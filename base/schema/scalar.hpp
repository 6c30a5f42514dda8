// SPDX-License-Identifier: Apache-2.0
// Scalars as files write them: which texts are numbers, switches and names, and messages about
// them.
#pragma once

#include <optional>
#include <string>

#include "base/schema/node.hpp"
#include "base/schema/types.hpp"

namespace tidemill::schema {

/// Returns the scalar that `node` holds, if it has the type of `value` and is within its limits.
///
/// Integers have no fraction, exponent or leading zero. Numbers are finite. Switches are `true` and
/// `false` only. Numbers of bytes may end in KiB, MiB, GiB or TiB. Quoted text is text.
[[nodiscard]] std::optional<Scalar> parse_scalar(const ValueSchema& value, const ConfigNode& node);

/// Returns a description of `node` for a message: "12", "\"12\"", "a list", "nothing".
[[nodiscard]] std::string found_phrase(const ConfigNode& node);

/// Returns "needs TYPE, found VALUE", with the name that was probably meant.
[[nodiscard]] std::string mistyped_phrase(const ValueSchema& value, const ConfigNode& node);

}  // namespace tidemill::schema
