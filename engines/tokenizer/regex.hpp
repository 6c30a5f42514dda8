// SPDX-License-Identifier: Apache-2.0
// The regular expressions of tokenizer files, run by PCRE2 with limits.
//
// Tokenizer files are written for Oniguruma with Ruby's syntax. `compile` accepts the constructs
// that have the same meaning in PCRE2, rewrites some that do not (`\s`, `\S`, `\w`, scripts) and
// refuses the rest, so that no pattern silently changes its meaning.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace tidemill::engines {

/// Returns the PCRE2 pattern (for the options UTF, UCP and multi-line) that is equivalent to an
/// Oniguruma pattern.
/// Errors: `kUnimplemented` names the construct and its offset.
[[nodiscard]] Result<std::string> translate_regex(std::string_view pattern);

/// A compiled pattern. Immutable; copies share it.
class Regex {
public:
  /// The bytes [begin, end) of the subject that match.
  struct Match {
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  /// The scratch memory for a match. Each thread needs its own.
  class Workspace;

  /// Compiles a pattern in Oniguruma's syntax.
  /// Errors: those of `translate_regex`; `kInvalidArgument` if the pattern is malformed.
  [[nodiscard]] static Result<Regex> compile(std::string_view pattern);

  /// Allocates the workspace of one thread.
  [[nodiscard]] Workspace make_workspace() const;

  /// Finds the first match that begins at or after `from`; look-behind sees the whole subject.
  /// Requires valid UTF-8, and `from` at the beginning of a character.
  /// Errors: `kResourceExhausted` names the byte offset where the match limit was reached. The
  /// limit is 10 million steps, plus 4 for each byte of the subject.
  /// Threads: safe to call concurrently with distinct workspaces.
  [[nodiscard]] Result<std::optional<Match>> find(std::string_view subject, std::size_t from,
                                                  Workspace& workspace) const;

private:
  struct Compiled;
  explicit Regex(std::shared_ptr<const Compiled> compiled) : compiled_(std::move(compiled)) {}

  std::shared_ptr<const Compiled> compiled_;
};

/// Holds the match data of PCRE2.
class Regex::Workspace {
public:
  Workspace(Workspace&&) noexcept;
  Workspace& operator=(Workspace&&) noexcept;
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace();

private:
  friend class Regex;
  struct State;
  explicit Workspace(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace tidemill::engines
