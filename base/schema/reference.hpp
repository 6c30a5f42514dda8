// SPDX-License-Identifier: Apache-2.0
// Documentation made from schemas: a list of all keys, an explanation of one, a page about all.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "base/schema/types.hpp"

namespace tidemill {

/// The description of one key of a schema.
struct KeyReference {
  std::string path;           // "train.adapter.rank"
  std::string type;           // "an integer from 1 to 1024"
  std::string default_value;  // as a file would write it; "null" for none
  std::string unit;
  std::string help;
  std::vector<std::string> also_called;  // names of the same setting in other programs
  bool required = false;
  bool has_keys = false;  // a struct: its keys follow in the list
  /// The choices the key depends on: {"workflow: rl", "reward.kind: regex"}.
  std::vector<std::string> when;
  /// For keys that choose among names: one "name: help" for each name.
  std::vector<std::string> names;
};

/// Lists all keys, including those of every kind, in the order of their description.
[[nodiscard]] std::vector<KeyReference> list_keys(const schema::StructSchema& root);

/// Returns a few lines about the key at `path`; for a struct, about its keys too.
/// Errors: `kNotFound` with the key that was probably meant, or why there is no such key.
[[nodiscard]] Result<std::string> explain_key(const schema::StructSchema& root,
                                              std::string_view path);

/// Returns a Markdown page about all keys, with a section for each struct. `introduction` is a
/// paragraph below the title; none if it is empty.
[[nodiscard]] std::string reference_page(const schema::StructSchema& root, std::string_view title,
                                         std::string_view introduction = {});

}  // namespace tidemill
