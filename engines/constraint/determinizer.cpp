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

// Computes the needs from the smallest to the largest. The need of a state is that of a state after
// a byte, or what a call and the state after it need; neither is less than its parts, so that a
// need is final when all smaller ones are.
void Determinizer::compute_needs() {
  std::vector<std::vector<std::int32_t>> before(rows_.size());  // by state after a byte
  std::vector<std::vector<CallSite>> callers(rows_.size());  // by start and by state after a call
  has_bytes_.assign(rows_.size(), false);
  std::vector<std::vector<std::int32_t>> found(static_cast<std::size_t>(max_depth_) + 1);
  grammar_.need.assign(rows_.size(), kNever);
  const auto lower = [&](std::int32_t state, std::int32_t need) {
    if (need <= max_depth_ && need < grammar_.need[static_cast<std::size_t>(state)]) {
      grammar_.need[static_cast<std::size_t>(state)] = need;
      found[static_cast<std::size_t>(need)].push_back(state);
    }
  };
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const auto state = static_cast<std::int32_t>(i);
    std::int32_t last = -1;
    for (const std::int32_t to : rows_[i]) {
      if (to >= 0 && to != last) {
        before[static_cast<std::size_t>(to)].push_back(state);
      }
      last = to;
    }
    for (const Call& call : calls_[i]) {
      const std::int32_t start = starts_[static_cast<std::size_t>(call.rule)];
      callers[static_cast<std::size_t>(start)].push_back({state, start, call.to});
      callers[static_cast<std::size_t>(call.to)].push_back({state, start, call.to});
    }
    if (grammar_.accepts[i] != 0) {
      lower(state, 0);
    }
  }
  for (std::size_t need = 0; need < found.size(); ++need) {
    for (std::size_t i = 0; i < found[need].size(); ++i) {  // grows
      const auto at = static_cast<std::size_t>(found[need][i]);
      for (const std::int32_t state : before[at]) {
        lower(state, static_cast<std::int32_t>(need));
      }
      for (const CallSite& site : callers[at]) {
        const std::int32_t inside = grammar_.need[static_cast<std::size_t>(site.start)];
        const std::int32_t after = grammar_.need[static_cast<std::size_t>(site.to)];
        if (inside != kNever && after != kNever) {
          lower(site.state, std::max(inside + 1, after));
        }
      }
    }
  }
  remove_dead_edges();
}

void Determinizer::remove_dead_edges() {
  const auto is_dead = [&](std::int32_t state) {
    return grammar_.need[static_cast<std::size_t>(state)] == kNever;
  };
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    for (std::int32_t& to : rows_[i]) {
      to = to >= 0 && is_dead(to) ? -1 : to;
      has_bytes_[i] = has_bytes_[i] || to >= 0;
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
  if (has_bytes_[at]) {
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
  std::array<std::uint64_t, 256> hashes{};
  for (const Row& row : rows_) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      hashes[byte] = hashes[byte] * 0x9E3779B97F4A7C15U + static_cast<std::uint64_t>(row[byte] + 1);
    }
  }
  std::vector<std::size_t> of_class;  // a byte of each class
  for (std::size_t byte = 0; byte < 256; ++byte) {
    const auto same = std::ranges::find_if(of_class, [&](std::size_t other) {
      return hashes[byte] == hashes[other] &&
             std::ranges::all_of(rows_, [&](const Row& row) { return row[byte] == row[other]; });
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
