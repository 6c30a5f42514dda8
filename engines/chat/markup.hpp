// SPDX-License-Identifier: Apache-2.0
// Text that is marked as escaped for HTML, like Python's `markupsafe.Markup`.
//
// Chat templates are rendered without automatic escaping, so only the filters `escape`,
// `forceescape` and `safe` make markup. Adding a string to markup, or formatting it into markup,
// escapes the string. Most methods of markup return markup.
#pragma once

#include <string>
#include <string_view>

#include "engines/chat/builtins.hpp"
#include "engines/chat/value.hpp"

namespace tidemill::engines::chat {

/// Returns the text of `value` as markup with & < > ' and " escaped. Markup is returned unchanged.
[[nodiscard]] Value escaped(Runtime& runtime, const Value& value);
/// Returns `text` as markup, with & < > ' and " escaped. Charges the budget.
[[nodiscard]] Value escaped_text(Runtime& runtime, std::string_view text);

/// Returns `text` as markup if `model` is markup, else as a string.
[[nodiscard]] Value string_like(const Value& model, std::string text);
/// Returns `value` as markup if it is a string, a list of them or a tuple of them; other values are
/// returned unchanged.
[[nodiscard]] Value as_markup(Runtime& runtime, const Value& value);

/// Replaces the character references of HTML, such as &amp; and &#38;. Invalid ones remain, or are
/// replaced as the HTML standard says.
[[nodiscard]] std::string unescape_html(std::string_view text);
/// Removes tags and comments, replaces runs of white space by one space, then unescapes.
[[nodiscard]] std::string strip_tags(std::string_view text);

}  // namespace tidemill::engines::chat
