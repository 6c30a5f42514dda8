// SPDX-License-Identifier: Apache-2.0
// Private to engines/constraint/. Builds a `Grammar` from fragments of nondeterministic automata.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "engines/constraint/grammar.hpp"

namespace tidemill::engines {

/// A part of an automaton with one start and one end. Used in exactly one place.
struct Fragment {
  std::int32_t start = 0;
  std::int32_t end = 0;
};

/// A set of code points: ranges in ascending order that do not touch.
struct CodePointRange {
  char32_t first = 0;
  char32_t last = 0;
};
using CodePoints = std::vector<CodePointRange>;

/// The sizes that a grammar may have.
struct GrammarLimits {
  std::int32_t max_states = 16'384;       // of the deterministic automaton
  std::int32_t max_nfa_states = 400'000;  // of the fragments
  std::int64_t max_work = 20'000'000;     // states visited while they are made deterministic
  std::int32_t max_rules = 4'096;
  std::int32_t max_entries_per_state = 32;  // alternatives that begin with different rules
};

/// Collects fragments and rules. A fragment that would exceed `GrammarLimits` is incomplete;
/// `build` then fails.
class GrammarBuilder {
public:
  using RuleId = std::int32_t;
  static constexpr std::int32_t kUnbounded = std::numeric_limits<std::int32_t>::max();

  explicit GrammarBuilder(const GrammarLimits& limits = {}) : limits_(limits) {}

  /// Returns whether a limit on the fragments or the rules has been exceeded.
  [[nodiscard]] bool is_full() const noexcept { return full_; }

  /// Return fragments that match: nothing at all; the empty text; a text; one byte of a range; a
  /// rule; the UTF-8 of one code point.
  [[nodiscard]] Fragment never();
  [[nodiscard]] Fragment empty();
  [[nodiscard]] Fragment text(std::string_view bytes);
  [[nodiscard]] Fragment byte_range(std::uint8_t first, std::uint8_t last);
  [[nodiscard]] Fragment call(RuleId rule);
  [[nodiscard]] Fragment code_point(const CodePoints& set);

  /// Combine fragments.
  [[nodiscard]] Fragment sequence(const std::vector<Fragment>& parts);
  [[nodiscard]] Fragment choice(const std::vector<Fragment>& parts);
  [[nodiscard]] Fragment optional(Fragment part);
  /// Returns a fragment that matches `make()` from `min` to `max` times.
  [[nodiscard]] Fragment repeat(std::int32_t min, std::int32_t max,
                                const std::function<Fragment()>& make);

  /// Add single states and edges.
  [[nodiscard]] std::int32_t add_state();
  void add_edge(std::int32_t from, std::int32_t to);
  void add_bytes(std::int32_t from, std::uint8_t first, std::uint8_t last, std::int32_t to);
  /// A subset that contains `state` drops `vetoed`: a text accepted at `state` is rejected at
  /// `vetoed`.
  void add_veto(std::int32_t state, std::int32_t vetoed);

  /// Adds a rule without a body.
  [[nodiscard]] RuleId declare_rule();
  void define_rule(RuleId rule, Fragment body);

  /// Compiles the automaton that starts with `start`.
  /// Errors: `kResourceExhausted` if a limit is exceeded; `kInvalidArgument` if a rule is
  /// left-recursive, or if no text of at most `max_depth` frames matches.
  [[nodiscard]] Result<Grammar> build(RuleId start, std::int32_t max_depth) const;

private:
  friend class Determinizer;

  struct ByteEdge {
    std::uint8_t first = 0;
    std::uint8_t last = 0;
    std::int32_t to = 0;
  };
  struct CallEdge {
    RuleId rule = 0;
    std::int32_t to = 0;
  };
  struct State {
    std::vector<ByteEdge> bytes;
    std::vector<CallEdge> calls;
    std::vector<std::int32_t> empty;
    std::int32_t vetoed = -1;
  };

  void add_utf8_range(std::int32_t from, char32_t first, char32_t last, std::int32_t to);

  GrammarLimits limits_;
  std::vector<State> states_;
  std::vector<Fragment> rules_;
  bool full_ = false;
};

}  // namespace tidemill::engines
