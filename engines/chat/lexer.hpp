// SPDX-License-Identifier: Apache-2.0
// Template text to tokens.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engines/chat/value.hpp"

namespace tidemill::engines::chat {

/// A piece of a template.
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

/// Cuts `source` into tokens; the last one is `kEnd`.
///
/// White space is controlled as by trim_blocks and lstrip_blocks: the newline after a block or
/// comment goes, and so does white space before one on its line; `-` takes all white space, `+`
/// keeps it. Comments go; raw blocks become data. One newline at the end of the template goes.
/// Throws `TemplateError` with the line.
[[nodiscard]] std::vector<Token> tokenize_template(std::string_view source);

}  // namespace tidemill::engines::chat
