// SPDX-License-Identifier: Apache-2.0
// The named character references of HTML, such as &amp;.
#pragma once

#include <cstdint>
#include <string_view>

namespace tidemill::engines::chat {

/// How a reference ends. HTML allows some names without the semicolon.
enum class EntityEnd : std::uint8_t { kSemicolon, kNone };

/// Returns the text of the reference `&name;` or `&name`, or an empty text if HTML has none.
[[nodiscard]] std::string_view find_html_entity(std::string_view name, EntityEnd end) noexcept;

}  // namespace tidemill::engines::chat
