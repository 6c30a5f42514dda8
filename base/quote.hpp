// SPDX-License-Identifier: Apache-2.0
// How foreign text appears in messages: quoted, on one line, and cut.
#pragma once

#include <string>
#include <string_view>

namespace tidemill {

/// Returns `text` in double quotes with quotes, backslashes, control characters and bytes outside
/// ASCII escaped, cut after 80 bytes, so that a message holding it stays one short line.
[[nodiscard]] std::string quote(std::string_view text);

/// Returns `name` as it is if it is 1 to 80 printable characters of ASCII, else quoted: for keys
/// that stand in a path.
[[nodiscard]] std::string quote_unless_plain(std::string_view name);

}  // namespace tidemill
