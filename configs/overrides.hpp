// SPDX-License-Identifier: Apache-2.0
// Applies configuration keys from the command line, such as `train.steps=20`.
#pragma once

#include <span>
#include <string>

#include "base/schema/node.hpp"
#include "base/status.hpp"

namespace tidemill::configs {

/// One argument `key.path=value`, and its location in error messages, e.g. "argument 3".
struct Override {
  std::string text;
  std::string location;
};

/// Sets the values of `overrides` in `root`, which must be a map.
///
/// A value that starts with `[`, `{` or a quote is parsed as YAML. Any other value is used
/// verbatim, so that globs and stop strings need no second level of quotes. `null` and `~` are
/// null. If several overrides set a key, the last one counts.
/// Errors: `kInvalidArgument` naming the location: an argument that is not UTF-8, contains a NUL
/// character or has no `=`, an empty value, an empty word in the path, a path through a value that
/// has no keys, invalid YAML.
[[nodiscard]] Status apply_overrides(std::span<const Override> overrides, ConfigNode& root);

}  // namespace tidemill::configs
