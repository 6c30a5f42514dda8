// SPDX-License-Identifier: Apache-2.0
#include "launcher/inspect/pages.hpp"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <ostream>
#include <string>

namespace tidemill::launcher {
namespace {

constexpr std::size_t kPromptLines = 2;  // left free for the shell's prompt below a page

// Starts $PAGER, or else `less`, or else `cat`.
std::FILE* open_pager() {
  const char* chosen = std::getenv("PAGER");  // NOLINT(concurrency-mt-unsafe): nothing calls setenv
  const std::string command = chosen != nullptr && *chosen != '\0'
                                  ? std::string(chosen)
                                  : "if command -v less >/dev/null; then less -R; else cat; fi";
  std::signal(SIGPIPE, SIG_IGN);         // the user may quit the pager early
  return ::popen(command.c_str(), "w");  // NOLINT(cert-env33-c): the user chose the command
}

}  // namespace

Pages::Pages(std::ostream& out, const Terminal& terminal, std::optional<std::size_t> page)
    : out_(out),
      lines_of_page_(std::max(terminal.rows, kPromptLines + 1) - kPromptLines),
      page_(page) {
  if (terminal.interactive && !page) {
    out_.flush();
    pager_ = open_pager();
  }
}

Pages::~Pages() {
  if (pager_ != nullptr) {
    ::pclose(pager_);
  }
}

bool Pages::write(std::string_view text) {
  if (pager_ != nullptr) {
    any_ = true;
    return std::fwrite(text.data(), 1, text.size(), pager_) == text.size() &&
           std::fflush(pager_) == 0;
  }
  const std::size_t first = page_ ? (*page_ - 1) * lines_of_page_ : 0;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n') + 1);
    const bool wanted = !page_ || (lines_ >= first && lines_ < first + lines_of_page_);
    if (wanted) {
      out_ << line;
      any_ = true;
    }
    ++lines_;
    text.remove_prefix(line.size());
  }
  return out_.good() && (!page_ || lines_ < first + lines_of_page_);
}

std::size_t Pages::num_pages() const noexcept {
  return (lines_ + lines_of_page_ - 1) / lines_of_page_;
}

}  // namespace tidemill::launcher
