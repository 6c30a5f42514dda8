// SPDX-License-Identifier: Apache-2.0
// Tokens to a syntax tree.
#pragma once

#include <vector>

#include "engines/chat/ast.hpp"
#include "engines/chat/lexer.hpp"

namespace tidemill::engines::chat {

/// Parses a template, with Jinja's grammar and precedence. Tags: for, if, set, macro, call, filter,
/// with, break, continue, generation, raw; no inclusion of other templates.
/// Throws `TemplateError` with the line, also for filters and tests that do not exist.
[[nodiscard]] Body parse_template(std::vector<Token> tokens);

}  // namespace tidemill::engines::chat
