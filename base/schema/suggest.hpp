// SPDX-License-Identifier: Apache-2.0
// "Did you mean": finds the closest of some names, and quotes user input.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/schema/types.hpp"
#include "base/text/clip.hpp"

namespace tidemill::schema {

/// Returns the candidate that `text` most likely stands for, or "" if none is close. Case does not
/// matter. These count as close, in this order: at most a third of the letters (at least one)
/// inserted, omitted, changed or swapped with their neighbor; words omitted or added (`timeout` for
/// `timeout_ms`); the first letters of all words (`lr`). Candidates must be lowercase, with words
/// joined by `_`.
[[nodiscard]] std::string closest_name(std::string_view text,
                                       const std::vector<std::string>& candidates);

/// Shortens the keys and values that error messages quote.
using tidemill::clipped;

/// Returns the path of `key` inside `path`, which may be empty.
[[nodiscard]] std::string joined(std::string_view path, std::string_view key);

/// A struct and the kind that was chosen for it, if any.
struct ChosenStruct {
  const StructSchema& structure;
  const KindSchema* kind = nullptr;
};

/// Returns the keys of the struct, "kind, name, weight", or "" if they are too many to list.
[[nodiscard]] std::string keys_phrase(const ChosenStruct& chosen);

/// Returns the message about `key`, which was written in `structure` at `path` under `root` but is
/// not one of its keys: the kind it belongs to, the key that other programs give this name, the key
/// that was meant, the path where it would fit, or the valid keys.
[[nodiscard]] std::string unknown_key_phrase(const ChosenStruct& root,
                                             const ChosenStruct& structure, std::string_view path,
                                             std::string_view key);

/// Returns the path of the key that other programs call `name` or, without one, of the only key of
/// this name; "" if there is none, or several.
[[nodiscard]] std::string path_of_name(const StructSchema& root, std::string_view name);

/// Returns why no key does what the setting `name` of other programs does, or "" if `root` and its
/// kinds do not say.
[[nodiscard]] std::string absence_of(const StructSchema& root, std::string_view name);

}  // namespace tidemill::schema
