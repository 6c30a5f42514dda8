// SPDX-License-Identifier: Apache-2.0
// Splits a stream of bytes into lines. Holds at most one line, whose length is bounded.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tidemill::engines {

/// Splits bytes into lines of at most `max_bytes`. A longer line is reported once and skipped.
class LineSplitter {
public:
  explicit LineSplitter(std::size_t max_bytes) : max_bytes_(max_bytes) {}

  /// Consumes `bytes`. Calls `on_line(std::string_view)` with each line that ends within them,
  /// without its newline, and `on_overlong()` once for each line that is too long.
  template <class OnLine, class OnOverlong>
  void feed(std::string_view bytes, OnLine&& on_line, OnOverlong&& on_overlong) {
    while (!bytes.empty()) {
      const std::size_t newline = bytes.find('\n');
      const std::string_view part = bytes.substr(0, newline);
      if (!skipping_ && line_.size() + part.size() > max_bytes_) {
        skipping_ = true;
        line_.clear();
        on_overlong();
      }
      if (!skipping_) {
        line_.append(part);
      }
      if (newline == std::string_view::npos) {
        return;
      }
      if (!skipping_) {
        on_line(std::string_view{line_});
      }
      skipping_ = false;
      line_.clear();
      bytes.remove_prefix(newline + 1);
    }
  }

private:
  std::size_t max_bytes_;
  std::string line_;
  bool skipping_ = false;
};

}  // namespace tidemill::engines
