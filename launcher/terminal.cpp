// SPDX-License-Identifier: Apache-2.0
#include "launcher/terminal.hpp"

#include <CLI/App.hpp>
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/text/utf8.hpp"
#include "launcher/option_checks.hpp"

namespace tidemill::launcher {
namespace {

constexpr std::size_t kMinColumns = 40;
constexpr std::size_t kMaxColumns = 400;

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nothing calls setenv
  return value == nullptr ? std::string_view() : value;
}

// Looks at the variables in the order of the C library: the first one that is not empty counts.
bool locale_is_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    std::string value(variable(name));
    if (!value.empty()) {
      std::transform(value.begin(), value.end(), value.begin(),
                     [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
      return value.find("utf-8") != std::string::npos || value.find("utf8") != std::string::npos;
    }
  }
  return false;
}

Colors colors_of_environment() {
  const std::string_view truecolor = variable("COLORTERM");
  return truecolor == "truecolor" || truecolor == "24bit" ? Colors::kTrue : Colors::k256;
}

}  // namespace

Terminal detect_terminal(const std::ostream& out) {
  Terminal terminal;
  terminal.letters = locale_is_utf8() ? Letters::kUtf8 : Letters::kAscii;
  terminal.interactive = &out == &std::cout && ::isatty(STDOUT_FILENO) == 1;
  if (!terminal.interactive) {
    return terminal;
  }
  struct winsize size {};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0) {
    terminal.columns = std::clamp<std::size_t>(size.ws_col, kMinColumns, kMaxColumns);
    terminal.rows = size.ws_row;
  }
  if (variable("NO_COLOR").empty() && variable("TERM") != "dumb") {
    terminal.colors = colors_of_environment();
  }
  return terminal;
}

void TerminalOptions::declare(CLI::App& app) {
  accept_names(
      *app.add_option("--color", color_, "Color log-probabilities; auto: only on a terminal")
           ->capture_default_str(),
      {"auto", "always", "never"});
  app.add_flag("--ascii", ascii_, "Draw with ASCII characters, as if the locale were not UTF-8");
  accept_integers(
      *app.add_option("--width", width_, "Columns to use instead of the terminal's width")
           ->type_name("N"),
      {kMinColumns, kMaxColumns});
}

Terminal TerminalOptions::terminal(const std::ostream& out) const {
  Terminal terminal = detect_terminal(out);
  terminal.letters = ascii_ ? Letters::kAscii : terminal.letters;
  if (width_ > 0) {
    terminal.columns = width_;
  }
  if (color_ == "never") {
    terminal.colors = Colors::kNone;
  } else if (color_ == "always" && terminal.colors == Colors::kNone) {
    terminal.colors = colors_of_environment();
  }
  return terminal;
}

std::string shown_text(std::string_view text, Letters letters) {
  const bool utf8 = letters == Letters::kUtf8;
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Step step = read_utf8(text, at);
    const char32_t c = step.code_point;
    if (step.kind != Utf8Step::Kind::kCharacter) {
      out += utf8 ? "\xEF\xBF\xBD" : "?";
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c < 0x20 || (c >= 0x7F && c < 0xA0)) {
      out += "\\x";
      out += kHex[(c >> 4U) & 0xFU];
      out += kHex[c & 0xFU];
    } else if (c < 0x80 || utf8) {
      out += text.substr(at, step.length);
    } else {
      out += '?';
    }
    at += step.length;
  }
  return out;
}

std::size_t shown_width(std::string_view text) {
  return count_code_points(text);
}

}  // namespace tidemill::launcher
