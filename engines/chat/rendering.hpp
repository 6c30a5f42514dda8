// SPDX-License-Identifier: Apache-2.0
// The result of rendering a template.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace tidemill::engines::chat {

/// The code points [begin, end) of a rendered text.
struct CodePointSpan {
  std::size_t begin = 0;
  std::size_t end = 0;
  friend bool operator==(const CodePointSpan&, const CodePointSpan&) = default;
};

/// A rendered text.
struct Rendering {
  std::string text;
  std::vector<CodePointSpan> generation_spans;  // the text of generation blocks
};

}  // namespace tidemill::engines::chat
