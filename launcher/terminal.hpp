// SPDX-License-Identifier: Apache-2.0
// What the program may draw with, and texts that are safe to show.
#pragma once

#include <cstddef>
#include <iosfwd>
#include <string>
#include <string_view>

namespace CLI {  // NOLINT(readability-identifier-naming): the library's own name
class App;
}  // namespace CLI

namespace tidemill::launcher {

/// How many colours text may have.
enum class Colours : std::uint8_t { kNone, k256, kTrue };

/// What texts may be made of.
enum class Letters : std::uint8_t { kAscii, kUtf8 };

/// Where a result goes.
struct Terminal {
  bool interactive = false;  // somebody sits before it
  Letters letters = Letters::kAscii;
  Colours colours = Colours::kNone;
  std::size_t columns = 80;
  std::size_t rows = 24;
};

/// Looks at where `out` goes: only standard output can be a terminal. Follows LC_ALL, LC_CTYPE,
/// LANG, TERM, COLORTERM and NO_COLOR (no-color.org).
[[nodiscard]] Terminal look_at_terminal(const std::ostream& out);

/// The options `--color`, `--ascii`, `--width`, with which a user overrides what is found out.
class TerminalOptions {
public:
  /// Adds the options to a command.
  void declare(CLI::App& app);
  [[nodiscard]] Terminal terminal(const std::ostream& out) const;

private:
  std::string color_ = "auto";
  bool ascii_ = false;
  std::size_t width_ = 0;
};

/// Returns `text` with control characters as `\n`, `\t`, `\x1b`, and U+FFFD for what is no UTF-8:
/// it cannot move the cursor or change colours. With `kAscii` all beyond it is `?`.
[[nodiscard]] std::string shown_text(std::string_view text, Letters letters);

/// Returns how many columns a text of `shown_text` takes: one for each code point.
[[nodiscard]] std::size_t shown_width(std::string_view text);

}  // namespace tidemill::launcher
