// SPDX-License-Identifier: Apache-2.0
// Cuts the text of a template into tokens.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engines/chat/value.hpp"

namespace tidemill::engines::chat {

/// A token of a template.
struct Token {
  enum class Kind : std::uint8_t {
    kData,           // text between tags
    kVariableBegin,  // {{
    kVariableEnd,
    kBlockBegin,  // {%
    kBlockEnd,
    kName,
    kLiteral,   // a string or number: `literal`
    kOperator,  // `text`
    kEnd,
  };
  Kind kind = Kind::kEnd;
  int line = 0;
  std::string text;
  Value literal;
};

/// Cuts `source` into tokens. The last one is `kEnd`.
///
/// White space is treated as with trim_blocks and lstrip_blocks. The newline after a block or
/// comment is removed, and so is the white space between the beginning of a line and a block or
/// comment. `-` removes all adjacent white space and `+` keeps it. Comments are dropped, and raw
/// blocks become data. One newline at the end of the template is removed.
/// Throws `TemplateError` with the line.
[[nodiscard]] std::vector<Token> tokenize_template(std::string_view source);

}  // namespace tidemill::engines::chat
