// SPDX-License-Identifier: Apache-2.0
// Runs a syntax tree.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "engines/chat/ast.hpp"
#include "engines/chat/value.hpp"

namespace tidemill::engines::chat {

/// The code points [begin, end) of a rendered text.
struct CodePointSpan {
  std::size_t begin = 0;
  std::size_t end = 0;
  friend bool operator==(const CodePointSpan&, const CodePointSpan&) = default;
};

/// The result of running a template.
struct Rendering {
  std::string text;
  std::vector<CodePointSpan> generation_spans;  // what stood in generation blocks
};

/// Runs `body` with the given variables; `now` is the time that strftime_now reads.
/// Throws `TemplateError` with the line.
[[nodiscard]] Rendering run_template(const Body& body,
                                     const std::vector<std::pair<std::string, Value>>& variables,
                                     std::string now);

}  // namespace tidemill::engines::chat
