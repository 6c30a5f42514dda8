// SPDX-License-Identifier: Apache-2.0
// Python's two ways to format values: the % operator and str.format.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engines/chat/builtins.hpp"

namespace tidemill::engines::chat {

/// Whether positional arguments may remain unused.
enum class UnusedArguments : std::uint8_t { kRefused, kAllowed };

/// Returns `format % arguments`. Supports the conversions s r d i u f F e E g G x X o c % with
/// flags, width and precision, and `%(name)s` for named arguments. Markup escapes its arguments and
/// gives markup.
/// Throws `TemplateError` where Python raises.
[[nodiscard]] Value format_percent(Runtime& runtime, const Value& format,
                                   const Arguments& arguments, UnusedArguments unused);

/// Returns `format.format(arguments)`. Supports `{}`, `{0}`, `{name}` and `{0.attribute}`, and in
/// format specifications fill, alignment, width, precision and the types s d f e g x. Markup
/// escapes its arguments and gives markup.
/// Throws `TemplateError` where Python raises and for unsupported syntax.
[[nodiscard]] Value format_braces(Runtime& runtime, const Value& format,
                                  const Arguments& arguments);

}  // namespace tidemill::engines::chat
