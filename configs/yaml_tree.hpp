// SPDX-License-Identifier: Apache-2.0
// Parses YAML text into a tree of configuration nodes. No other code uses a YAML library.
//
// The parser accepts the YAML that people write by hand: maps, lists and scalars in block or flow
// style, as UTF-8 with or without a byte order mark, with lines that end in LF or CRLF. It refuses
// anchors, aliases, merge keys, tags, duplicate keys, keys that are lists or maps, unquoted
// no-break spaces, control characters, a second document, and texts beyond the limits below. It
// never expands anything.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "base/schema/node.hpp"

namespace tidemill::configs {

/// The limits of a document. Scalars (keys too), lists and maps count as values.
inline constexpr std::size_t kMaxYamlBytes = std::size_t{1} << 20U;
inline constexpr int kMaxYamlDepth = 32;
inline constexpr std::size_t kMaxYamlValues = 100'000;

/// Whether the locations of nodes and errors include line numbers.
enum class YamlLines : std::uint8_t { kNumbered, kNone };

/// Parses `text`, which comes from `source` ("configs/x.yaml", "argument 3").
/// Errors: `kInvalidArgument` with one line: "source:line: problem", or "source: problem" if
/// `lines` is `kNone` or the problem is that of the whole text.
[[nodiscard]] Result<ConfigNode> parse_yaml(std::string_view text, const std::string& source,
                                            YamlLines lines = YamlLines::kNumbered);

}  // namespace tidemill::configs
