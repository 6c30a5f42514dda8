// SPDX-License-Identifier: Apache-2.0
// Runs the syntax tree of a template.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engines/chat/ast.hpp"
#include "engines/chat/rendering.hpp"
#include "engines/chat/value.hpp"

namespace tidemill::engines::chat {

/// Runs `body` with the given variables. `now` is the time for strftime_now.
/// Throws `TemplateError` with the line.
[[nodiscard]] Rendering run_template(const Body& body,
                                     const std::vector<std::pair<std::string, Value>>& variables,
                                     std::string now);

}  // namespace tidemill::engines::chat
