// SPDX-License-Identifier: Apache-2.0
// Quotes untrusted text for messages, on one line and truncated.
#pragma once

#include <string>
#include <string_view>

namespace tidemill {

/// Returns `text` in double quotes, with quotes, backslashes, control characters and bytes outside
/// ASCII escaped, and truncated after 80 bytes. A message that contains it stays one short line.
[[nodiscard]] std::string quote(std::string_view text);

/// Returns `name` unchanged if it is 1 to 80 printable ASCII characters, and quoted otherwise. Used
/// for keys in a path.
[[nodiscard]] std::string quote_unless_plain(std::string_view name);

}  // namespace tidemill
