// SPDX-License-Identifier: Apache-2.0
// Configuration keys given on the command line: `train.steps=20`.
#pragma once

#include <span>
#include <string>

#include "base/schema_node.hpp"
#include "base/status.hpp"

namespace tidemill::configs {

/// One `key.path=value`, and what an error calls its place, e.g. "argument 3".
struct Override {
  std::string text;
  std::string place;
};

/// Puts the values of `overrides` into `root`, a map.
///
/// A value that starts with `[`, `{` or a quote is YAML; everything else is taken as it stands, so
/// that globs and stop strings need no second quoting. An empty value, `null` and `~` are nothing.
/// Errors: `kInvalidArgument` naming the place: no UTF-8, no `=`, an empty word in the path, a path
/// through something that has no keys, a key given twice, broken YAML.
[[nodiscard]] Status apply_overrides(std::span<const Override> overrides, ConfigNode& root);

}  // namespace tidemill::configs
