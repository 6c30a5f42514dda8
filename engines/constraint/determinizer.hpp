// SPDX-License-Identifier: Apache-2.0
// Private to engines/constraint/. Makes the rules of a `GrammarBuilder` deterministic.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "engines/constraint/grammar_builder.hpp"

namespace tidemill::engines {

/// Compiles the rules of a builder, which must outlive it: subset construction per rule, removal of
/// states that cannot be completed, and byte classes. Used once.
class Determinizer {
public:
  Determinizer(const GrammarBuilder& builder, std::int32_t max_depth)
      : builder_(builder), max_depth_(max_depth) {}

  /// See `GrammarBuilder::build`.
  [[nodiscard]] Result<Grammar> run(GrammarBuilder::RuleId start);

private:
  using Subset = std::vector<std::int32_t>;  // states of the builder, ascending
  using Row = std::array<std::int32_t, 256>;
  struct Call {
    GrammarBuilder::RuleId rule = 0;
    std::int32_t to = 0;
  };

  // A call: where it is made, where its rule starts, and where it returns.
  struct CallSite {
    std::int32_t state = 0;
    std::int32_t start = 0;
    std::int32_t to = 0;
  };

  [[nodiscard]] Status determinize(GrammarBuilder::RuleId rule);
  [[nodiscard]] Status expand(std::int32_t state, const Subset& subset,
                              GrammarBuilder::RuleId rule);
  [[nodiscard]] Result<std::int32_t> intern(Subset targets, GrammarBuilder::RuleId rule);
  void close(Subset& subset);
  void compute_needs();
  void remove_dead_edges();
  [[nodiscard]] Status add_entries(std::size_t state);
  [[nodiscard]] Status add_called(std::int32_t state, std::vector<std::int32_t>& frames,
                                  std::int32_t reach);
  void compress();

  const GrammarBuilder& builder_;
  std::int32_t max_depth_;
  std::int64_t work_ = 0;
  std::map<Subset, std::int32_t> known_;  // of the current rule
  std::vector<Subset> subsets_;
  std::vector<std::int32_t> pending_;
  std::vector<std::uint32_t> marks_;  // by state of the builder: the last closure that reached it
  std::uint32_t mark_ = 0;
  std::vector<Row> rows_;
  std::vector<std::vector<Call>> calls_;
  std::vector<std::int32_t> starts_;  // by rule
  std::vector<bool> has_bytes_;       // by state
  Grammar grammar_;
};

}  // namespace tidemill::engines
