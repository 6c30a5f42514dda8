// SPDX-License-Identifier: Apache-2.0
// Regular expressions over module paths, as they occur in adapter configs.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace tidemill::engines {

/// A compiled regular expression. Matching is bounded: a pattern that takes too many steps fails
/// instead of hanging. The syntax is PCRE2's, which agrees with Python's `re` on such patterns.
///
/// Threads: safe to use concurrently.
class ModulePattern {
public:
  /// Compiles `pattern`, of at most 4,096 bytes.
  /// Errors: `kInvalidArgument`; the message contains the reason and the offset.
  [[nodiscard]] static Result<ModulePattern> compile(const std::string& pattern);

  /// Returns whether the whole of `path` matches (Python's `re.fullmatch`).
  /// Errors: `kInvalidArgument` if the match takes too many steps.
  [[nodiscard]] Result<bool> matches_whole(std::string_view path) const;

  /// Matches from the start of `path` (Python's `re.match`) and returns the content of group 1, or
  /// nullopt if the pattern does not match. Errors: as `matches_whole`.
  [[nodiscard]] Result<std::optional<std::string>> first_group(std::string_view path) const;

private:
  explicit ModulePattern(std::shared_ptr<const void> code) : code_(std::move(code)) {}
  std::shared_ptr<const void> code_;
};

}  // namespace tidemill::engines
