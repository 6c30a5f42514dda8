// SPDX-License-Identifier: Apache-2.0
// Detects what the terminal supports, and makes text safe to print.
#pragma once

#include <cstddef>
#include <iosfwd>
#include <string>
#include <string_view>

namespace CLI {  // NOLINT(readability-identifier-naming): the library's own name
class App;
}  // namespace CLI

namespace tidemill::launcher {

/// How many colors the terminal supports.
enum class Colors : std::uint8_t { kNone, k256, kTrue };

/// Which characters the terminal supports.
enum class Letters : std::uint8_t { kAscii, kUtf8 };

/// The properties of an output.
struct Terminal {
  bool interactive = false;  // the output is a terminal
  Letters letters = Letters::kAscii;
  Colors colors = Colors::kNone;
  std::size_t columns = 80;
  std::size_t rows = 24;
};

/// Detects the properties of `out`. Only standard output can be a terminal. Honors LC_ALL,
/// LC_CTYPE, LANG, TERM, COLORTERM and NO_COLOR (no-color.org).
[[nodiscard]] Terminal detect_terminal(const std::ostream& out);

/// The options `--color`, `--ascii` and `--width`, which override the detected properties.
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

/// Returns `text` in a form that cannot move the cursor or change colors: control characters become
/// `\n`, `\t` or e.g. `\x1b`, and bytes that are not UTF-8 become U+FFFD. With `kAscii`, bytes that
/// are not UTF-8 and characters beyond ASCII become `?`.
[[nodiscard]] std::string shown_text(std::string_view text, Letters letters);

/// Returns how many columns an output of `shown_text` takes: one for each code point.
[[nodiscard]] std::size_t shown_width(std::string_view text);

}  // namespace tidemill::launcher
