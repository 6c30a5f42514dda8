// SPDX-License-Identifier: Apache-2.0
#include "engines/constraint/determinizer.hpp"

#include <algorithm>
#include <limits>
#include <string>

namespace tidemill::engines {
namespace {

constexpr std::int32_t kNever = std::numeric_limits<std::int32_t>::max();

Status too_large(const std::string& what) {
  return {Errc::kResourceExhausted, "the schema is too large: " + what};
}

}  // namespace

// Adds the states that follow without a byte.
void Determinizer::close(Subset& subset) {
  ++mark_;
  for (const std::int32_t state : subset) {
    marks_[static_cast<std::size_t>(state)] = mark_;
  }
  for (std::size_t i = 0; i < subset.size(); ++i) {
    for (const std::int32_t to : builder_.states_[static_cast<std::size_t>(subset[i])].empty) {
      if (marks_[static_cast<std::size_t>(to)] != mark_) {
        marks_[static_cast<std::size_t>(to)] = mark_;
        subset.push_back(to);
      }
    }
  }
  work_ += static_cast<std::int64_t>(subset.size());
  std::ranges::sort(subset);
}

// Returns the deterministic state of `targets` and of what follows them without a byte.
Result<std::int32_t> Determinizer::intern(Subset targets, GrammarBuilder::RuleId rule) {
  std::ranges::sort(targets);
  targets.erase(std::unique(targets.begin(), targets.end()), targets.end());
  for (const std::int32_t state : Subset(targets)) {
    const std::int32_t vetoed = builder_.states_[static_cast<std::size_t>(state)].vetoed;
    if (vetoed >= 0) {
      std::erase(targets, vetoed);
    }
  }
  close(targets);
  const auto found = known_.find(targets);
  if (found != known_.end()) {
    return found->second;
  }
  if (static_cast<std::int32_t>(rows_.size()) >= builder_.limits_.max_states) {
    return too_large("more than " + std::to_string(builder_.limits_.max_states) + " states");
  }
  if (work_ > builder_.limits_.max_work) {
    return too_large("it takes too long to compile");
  }
  const auto state = static_cast<std::int32_t>(rows_.size());
  rows_.emplace_back().fill(-1);
  calls_.emplace_back();
  const std::int32_t end = builder_.rules_[static_cast<std::size_t>(rule)].end;
  grammar_.accepts.push_back(std::ranges::binary_search(targets, end) ? 1 : 0);
  known_.emplace(targets, state);
  subsets_.push_back(std::move(targets));
  pending_.push_back(state);
  return state;
}

// Adds the edges of a deterministic state.
Status Determinizer::expand(std::int32_t state, const Subset& subset, GrammarBuilder::RuleId rule) {
  std::array<bool, 257> begins{};
  std::map<GrammarBuilder::RuleId, Subset> called;
  for (const std::int32_t one : subset) {
    const GrammarBuilder::State& from = builder_.states_[static_cast<std::size_t>(one)];
    for (const GrammarBuilder::ByteEdge& edge : from.bytes) {
      begins[edge.first] = true;
      begins[edge.last + 1U] = true;
    }
    for (const GrammarBuilder::CallEdge& call : from.calls) {
      called[call.rule].push_back(call.to);
    }
  }
  std::int32_t target = -1;
  for (std::size_t byte = 0; byte < 256; ++byte) {
    if (begins[byte]) {
      Subset targets;
      for (const std::int32_t one : subset) {
        for (const auto& edge : builder_.states_[static_cast<std::size_t>(one)].bytes) {
          if (edge.first <= byte && byte <= edge.last) {
            targets.push_back(edge.to);
          }
        }
      }
      work_ += static_cast<std::int64_t>(subset.size());
      target = -1;
      if (!targets.empty()) {
        TIDEMILL_ASSIGN_OR_RETURN(target, intern(std::move(targets), rule));
      }
    }
    rows_[static_cast<std::size_t>(state)][byte] = target;
  }
  for (auto& [callee, targets] : called) {
    TIDEMILL_ASSIGN_OR_RETURN(const std::int32_t to, intern(std::move(targets), rule));
    calls_[static_cast<std::size_t>(state)].push_back({callee, to});
  }
  return {};
}

Status Determinizer::determinize(GrammarBuilder::RuleId rule) {
  known_.clear();
  const Fragment& body = builder_.rules_[static_cast<std::size_t>(rule)];
  TIDEMILL_ASSIGN_OR_RETURN(starts_[static_cast<std::size_t>(rule)], intern({body.start}, rule));
  while (!pending_.empty()) {
    const std::int32_t state = pending_.back();
    pending_.pop_back();
    const Subset subset = std::move(subsets_[static_cast<std::size_t>(state)]);
    TIDEMILL_RETURN_IF_ERROR(expand(state, subset, rule));
  }
  return {};
}

std::int32_t Determinizer::need_from(std::size_t state) const {
  if (grammar_.accepts[state] != 0) {
    return 0;
  }
  std::int32_t least = kNever;
  for (const std::int32_t to : rows_[state]) {
    least = to < 0 ? least : std::min(least, grammar_.need[static_cast<std::size_t>(to)]);
  }
  for (const Call& call : calls_[state]) {
    const std::int32_t start = starts_[static_cast<std::size_t>(call.rule)];
    const std::int32_t inside = grammar_.need[static_cast<std::size_t>(start)];
    const std::int32_t after = grammar_.need[static_cast<std::size_t>(call.to)];
    if (inside != kNever && after != kNever) {
      least = std::min(least, std::max(inside + 1, after));
    }
  }
  return least;
}

// Computes the least solution, from above: each pass lowers some values or is the last. Values only
// become smaller and need at most one pass per level of nesting and state on a path; later states
// come first, because edges mostly lead forward.
void Determinizer::compute_needs() {
  grammar_.need.assign(rows_.size(), kNever);
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t i = rows_.size(); i-- > 0;) {
      const std::int32_t need = need_from(i);
      if (need < grammar_.need[i]) {
        grammar_.need[i] = need;
        changed = true;
      }
      work_ += 1;
    }
  }
  const auto is_dead = [&](std::int32_t state) {
    return grammar_.need[static_cast<std::size_t>(state)] > max_depth_;
  };
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    for (std::int32_t& to : rows_[i]) {
      to = to >= 0 && is_dead(to) ? -1 : to;
    }
    std::erase_if(calls_[i], [&](const Call& call) {
      return is_dead(call.to) || is_dead(starts_[static_cast<std::size_t>(call.rule)]);
    });
  }
}

// Adds the entry of `state` behind `frames`, and those of the rules that it calls.
Status Determinizer::add_called(std::int32_t state, std::vector<std::int32_t>& frames,
                                std::int32_t reach) {
  const auto at = static_cast<std::size_t>(state);
  const auto depth = static_cast<std::int32_t>(frames.size());
  const auto first = static_cast<std::size_t>(grammar_.first_entry.back());
  if (std::ranges::any_of(rows_[at], [](std::int32_t to) { return to >= 0; })) {
    const auto begin = static_cast<std::int32_t>(grammar_.frames.size());
    grammar_.frames.insert(grammar_.frames.end(), frames.begin(), frames.end());
    grammar_.entries.push_back({state, begin, depth, reach});
  }
  if (grammar_.entries.size() - first >
      static_cast<std::size_t>(builder_.limits_.max_entries_per_state)) {
    return too_large("a value has more than " +
                     std::to_string(builder_.limits_.max_entries_per_state) + " alternatives");
  }
  if (depth > max_depth_) {
    return invalid_argument("a schema refers to itself without a value in between");
  }
  if (++work_ > builder_.limits_.max_work) {
    return too_large("it takes too long to compile");
  }
  for (const Call& call : calls_[at]) {
    const std::int32_t start = starts_[static_cast<std::size_t>(call.rule)];
    const std::int32_t needed =
        std::max(depth + grammar_.need[static_cast<std::size_t>(call.to)],
                 depth + 1 + grammar_.need[static_cast<std::size_t>(start)]);
    frames.push_back(call.to);
    TIDEMILL_RETURN_IF_ERROR(add_called(start, frames, std::max(reach, needed)));
    frames.pop_back();
  }
  return {};
}

Status Determinizer::add_entries(std::size_t state) {
  std::vector<std::int32_t> frames;
  TIDEMILL_RETURN_IF_ERROR(add_called(static_cast<std::int32_t>(state), frames, 0));
  grammar_.first_entry.push_back(static_cast<std::int32_t>(grammar_.entries.size()));
  return {};
}

// Gives bytes that are equal in all states one column.
void Determinizer::compress() {
  std::vector<std::size_t> of_class;  // a byte of each class
  for (std::size_t byte = 0; byte < 256; ++byte) {
    const auto same = std::ranges::find_if(of_class, [&](std::size_t other) {
      return std::ranges::all_of(rows_, [&](const Row& row) { return row[byte] == row[other]; });
    });
    grammar_.classes[byte] = static_cast<std::uint8_t>(same - of_class.begin());
    if (same == of_class.end()) {
      of_class.push_back(byte);
    }
  }
  grammar_.num_classes = static_cast<std::int32_t>(of_class.size());
  for (const Row& row : rows_) {
    for (const std::size_t byte : of_class) {
      grammar_.next.push_back(row[byte]);
    }
  }
}

Result<Grammar> Determinizer::run(GrammarBuilder::RuleId start) {
  marks_.assign(builder_.states_.size(), 0);
  starts_.assign(builder_.rules_.size(), 0);
  for (std::size_t i = 0; i < builder_.rules_.size(); ++i) {
    TIDEMILL_RETURN_IF_ERROR(determinize(static_cast<GrammarBuilder::RuleId>(i)));
  }
  compute_needs();
  grammar_.start = starts_[static_cast<std::size_t>(start)];
  grammar_.max_depth = max_depth_;
  if (grammar_.need[static_cast<std::size_t>(grammar_.start)] > max_depth_) {
    return invalid_argument("no value can satisfy the schema within " + std::to_string(max_depth_) +
                            " levels of nesting");
  }
  grammar_.first_entry.push_back(0);
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    TIDEMILL_RETURN_IF_ERROR(add_entries(i));
  }
  compress();
  return std::move(grammar_);
}

}  // namespace tidemill::engines
