// SPDX-License-Identifier: Apache-2.0
// Parses YAML text into a tree of configuration nodes. No other code uses a YAML library.
//
// The parser accepts the YAML that people write by hand: maps, lists and scalars in block or flow
// style. It refuses anchors, aliases, merge keys, tags, duplicate keys, keys that are not words,
// several documents, more than 1 MiB, more than 32 levels and more than 100,000 values. Nothing is
// ever expanded. A byte order mark is skipped. Lines end in LF or CRLF.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "base/schema/node.hpp"

namespace tidemill::configs {

/// The limits of a document. Scalars, lists and maps count as values.
inline constexpr std::size_t kMaxYamlBytes = std::size_t{1} << 20U;
inline constexpr int kMaxYamlDepth = 32;
inline constexpr std::size_t kMaxYamlValues = 100'000;

/// Whether locations in a source include line numbers.
enum class YamlLines : std::uint8_t { kNumbered, kNone };

/// Parses `text`, which comes from `source` ("configs/x.yaml", "argument 3").
///
/// Errors: `kInvalidArgument` with one line "source:line: problem".
[[nodiscard]] Result<ConfigNode> parse_yaml(std::string_view text, const std::string& source,
                                            YamlLines lines = YamlLines::kNumbered);

}  // namespace tidemill::configs
