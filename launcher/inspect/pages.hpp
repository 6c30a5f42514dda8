// SPDX-License-Identifier: Apache-2.0
// Shows long results: a single page, or everything in a pager.
#pragma once

#include <cstddef>
#include <cstdio>
#include <iosfwd>
#include <optional>
#include <string_view>

#include "launcher/terminal.hpp"

namespace tidemill::launcher {

/// Writes lines of text: one page to `out` if a page was chosen, else everything. Everything goes
/// to `$PAGER` (default: `less -R`) if the output is an interactive terminal, else to `out`.
class Pages {
public:
  /// `page` counts from 1; none: everything. Borrows `out`.
  Pages(std::ostream& out, const Terminal& terminal, std::optional<std::size_t> page);
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  /// Waits until the user quits the pager.
  ~Pages();

  /// Writes the part of `text`, which must consist of whole lines, that belongs to the page.
  /// Returns false if further text would not be shown.
  [[nodiscard]] bool write(std::string_view text);
  /// Returns whether any line was written.
  [[nodiscard]] bool any() const noexcept { return any_; }
  /// Returns the number of pages of the text so far.
  [[nodiscard]] std::size_t num_pages() const noexcept;

private:
  std::ostream& out_;
  std::FILE* pager_ = nullptr;
  std::size_t lines_of_page_;
  std::optional<std::size_t> page_;
  std::size_t lines_ = 0;
  bool any_ = false;
};

}  // namespace tidemill::launcher
