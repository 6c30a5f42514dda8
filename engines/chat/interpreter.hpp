// SPDX-License-Identifier: Apache-2.0
// Runs the syntax tree of a template.
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
  std::vector<CodePointSpan> generation_spans;  // the text of generation blocks
};

/// Runs `body` with the given variables. `now` is the time for strftime_now.
/// Throws `TemplateError` with the line.
[[nodiscard]] Rendering run_template(const Body& body,
                                     const std::vector<std::pair<std::string, Value>>& variables,
                                     std::string now);

}  // namespace tidemill::engines::chat
