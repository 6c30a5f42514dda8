// SPDX-License-Identifier: Apache-2.0
// Python's two ways to fill values into text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engines/chat/builtins.hpp"

namespace tidemill::engines::chat {

/// Whether positional arguments may be left over.
enum class UnusedArguments : std::uint8_t { kRefused, kAllowed };

/// Returns `format % arguments`: conversions s r d i u f F e E g G x X o c %, with flags, width and
/// precision; `%(name)s` takes named arguments.
/// Throws `TemplateError`, as for all that Python refuses.
[[nodiscard]] std::string format_percent(Runtime& runtime, std::string_view format,
                                         const Arguments& arguments, UnusedArguments unused);

/// Returns `format.format(arguments)`: `{}`, `{0}`, `{name}`, `{0.attribute}`, and of format
/// specifications fill, alignment, width, precision and the types s d f e g x.
/// Throws `TemplateError`.
[[nodiscard]] std::string format_braces(Runtime& runtime, std::string_view format,
                                        const Arguments& arguments);

}  // namespace tidemill::engines::chat
