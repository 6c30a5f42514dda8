// SPDX-License-Identifier: Apache-2.0
// A configuration as somebody wrote it: a tree of texts, lists and maps that knows its lines.
//
// The tree is the border between file formats and schemas. `configs/` makes it from YAML, tests
// make it by hand, and a schema prints one to show a resolved configuration.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tidemill {

/// Where a piece of configuration was written.
struct ConfigPlace {
  std::shared_ptr<const std::string> source;  // "configs/x.yaml", "argument 3"; null: nowhere
  int line = 0;                               // counts from 1; 0: the source has no lines
};

/// Returns "configs/x.yaml:12", "argument 3", or "" for nowhere.
[[nodiscard]] std::string to_string(const ConfigPlace& place);

struct ConfigEntry;

/// One value of a configuration file.
struct ConfigNode {
  enum class Kind : std::uint8_t {
    kNull,    // nothing was written
    kPlain,   // a bare word: `12`, `true`, `runs/a`
    kQuoted,  // text that was quoted, and so is never a number, a switch or nothing
    kList,
    kMap
  };

  Kind kind = Kind::kNull;
  ConfigPlace place;
  std::string text;                  // kPlain, kQuoted
  std::vector<ConfigNode> items;     // kList
  std::vector<ConfigEntry> entries;  // kMap; keys differ

  /// Returns the entry of `key` in a map, or null.
  [[nodiscard]] const ConfigEntry* find(std::string_view key) const;
  [[nodiscard]] ConfigEntry* find(std::string_view key);
};

/// One `key: value` of a map.
struct ConfigEntry {
  std::string key;
  ConfigPlace place;  // of the key
  ConfigNode value;
};

/// Returns the tree as a YAML block that can be read back.
[[nodiscard]] std::string to_block_text(const ConfigNode& node);

/// Returns the tree as YAML on one line, e.g. `{kind: lora, rank: 16}`.
[[nodiscard]] std::string to_flow_text(const ConfigNode& node);

}  // namespace tidemill
