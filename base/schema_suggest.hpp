// SPDX-License-Identifier: Apache-2.0
// "Did you mean": the nearest of some names, and quoting what somebody wrote.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/schema_types.hpp"

namespace tidemill::schema {

/// Returns the candidate that `text` most likely stands for, or "" if none is near. Small and
/// capital letters are one. Near is, in this order: at most a third of its letters (at least one)
/// inserted, left out, changed or swapped with their neighbour; words left out or added
/// (`timeout` for `timeout_ms`); the first letters of all words (`lr`). Candidates are in small
/// letters, their words joined by `_`.
[[nodiscard]] std::string closest_name(std::string_view text,
                                       const std::vector<std::string>& candidates);

/// Returns `text` for an error message: control characters replaced, at most 60 bytes.
[[nodiscard]] std::string clipped(std::string_view text);

/// Returns the path of `key` inside `path`, which may be empty.
[[nodiscard]] std::string joined(std::string_view path, std::string_view key);

/// A struct and the kind it has, if any.
struct ChosenStruct {
  const StructSchema& structure;
  const KindSchema* kind = nullptr;
};

/// Returns the keys that go there, "kind, name, weight"; "" if they are too many to list.
[[nodiscard]] std::string keys_phrase(const ChosenStruct& chosen);

/// Returns what to say about `key`, which stands in `structure` at `path` under `root` and is none
/// of its keys: the kind it belongs to, the key that was meant, the place where it would fit, or
/// the keys that there are.
[[nodiscard]] std::string unknown_key_phrase(const ChosenStruct& root,
                                             const ChosenStruct& structure, std::string_view path,
                                             std::string_view key);

}  // namespace tidemill::schema
