// SPDX-License-Identifier: Apache-2.0
// Long results in pages: one of them, or all through a pager.
#pragma once

#include <cstddef>
#include <cstdio>
#include <iosfwd>
#include <optional>
#include <string_view>

#include "launcher/terminal.hpp"

namespace tidemill::launcher {

/// Writes texts of whole lines: all to `out`; one page of them; or, before somebody who sits at a
/// terminal, all to `$PAGER` (`less -R` without).
class Pages {
public:
  /// `page` counts from 1; none: all. Borrows `out`.
  Pages(std::ostream& out, const Terminal& terminal, std::optional<std::size_t> page);
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  /// Waits until the reader has left the pager.
  ~Pages();

  /// Writes what of `text` belongs to the page. Returns whether more is wanted.
  [[nodiscard]] bool write(std::string_view text);
  /// Returns whether any line was written.
  [[nodiscard]] bool any() const noexcept { return any_; }
  /// Returns how many pages the lines so far make.
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
