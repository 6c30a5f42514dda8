// SPDX-License-Identifier: Apache-2.0
// Parses the tokens of a template into a syntax tree.
#pragma once

#include <vector>

#include "engines/chat/ast.hpp"
#include "engines/chat/lexer.hpp"

namespace tidemill::engines::chat {

/// Parses a template with Jinja's grammar and precedence. Supports the tags for, if, set, macro,
/// call, filter, with, break, continue, generation and raw, but not the inclusion of other
/// templates.
/// Throws `TemplateError` with the line, also for unknown filters and tests.
[[nodiscard]] Body parse_template(std::vector<Token> tokens);

}  // namespace tidemill::engines::chat
