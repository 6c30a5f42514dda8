// SPDX-License-Identifier: Apache-2.0
// YAML text as a tree of configuration nodes. The only code that knows a YAML library.
//
// The YAML taken is what people write by hand: maps, lists and scalars, block or flow. Refused are
// anchors, aliases, merge keys, tags, keys given twice, keys that are not words, several documents,
// more than 1 MiB, more than 32 levels and more than 100,000 values. Nothing is ever expanded.
// A byte order mark is skipped; lines end in LF or CRLF.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "base/schema_node.hpp"

namespace tidemill::configs {

inline constexpr std::size_t kMaxYamlBytes = std::size_t{1} << 20U;
inline constexpr int kMaxYamlDepth = 32;
inline constexpr std::size_t kMaxYamlValues = 100'000;

/// Whether places in a source are told by line.
enum class YamlLines : std::uint8_t { kNumbered, kNone };

/// Returns the tree of `text`, which came from `source` ("configs/x.yaml", "argument 3").
///
/// Errors: `kInvalidArgument` with one line "source:line: problem".
[[nodiscard]] Result<ConfigNode> parse_yaml(std::string_view text, const std::string& source,
                                            YamlLines lines = YamlLines::kNumbered);

}  // namespace tidemill::configs
