// SPDX-License-Identifier: Apache-2.0
// A configuration as it was written: a tree of texts, lists and maps, each with its line.
//
// The tree is the interface between file formats and schemas. `configs/` builds it from YAML, tests
// build it by hand, and a schema prints one to show a resolved configuration.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tidemill {

class Json;

/// Where a piece of configuration was written.
struct ConfigLocation {
  std::shared_ptr<const std::string> source;  // "configs/x.yaml", "argument 3"; null: not written
  int line = 0;                               // counts from 1; 0: the source has no lines
};

/// Returns "configs/x.yaml:12", "argument 3", or "" without a source.
[[nodiscard]] std::string to_string(const ConfigLocation& location);

struct ConfigEntry;

/// One value of a configuration file.
struct ConfigNode {
  enum class Kind : std::uint8_t {
    kNull,    // nothing was written
    kPlain,   // a bare word: `12`, `true`, `runs/a`
    kQuoted,  // text in quotes, which is never a number, a switch or null
    kList,
    kMap
  };

  Kind kind = Kind::kNull;
  ConfigLocation location;
  std::string text;                  // kPlain, kQuoted
  std::vector<ConfigNode> items;     // kList
  std::vector<ConfigEntry> entries;  // kMap; keys are unique

  /// Returns the entry of `key` in a map, or null.
  [[nodiscard]] const ConfigEntry* find(std::string_view key) const;
  [[nodiscard]] ConfigEntry* find(std::string_view key);
};

/// One `key: value` of a map.
struct ConfigEntry {
  std::string key;
  ConfigLocation location;  // of the key
  ConfigNode value;
};

/// Returns the tree as a YAML block that can be read back.
[[nodiscard]] std::string to_block_text(const ConfigNode& node);

/// Returns the tree as JSON. A bare word that is a JSON value becomes that value; any other word is
/// a text.
[[nodiscard]] Json json_of(const ConfigNode& node);

/// Returns the tree as YAML on one line, e.g. `{kind: lora, rank: 16}`.
[[nodiscard]] std::string to_flow_text(const ConfigNode& node);

}  // namespace tidemill
