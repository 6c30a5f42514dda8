// SPDX-License-Identifier: Apache-2.0
// Who generates next: which sequences run, which tokens each iteration computes, and who holds
// which pages. It knows tokens and page numbers; what they are computed with is not its concern.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engines/scheduler/length_forecast.hpp"
#include "engines/scheduler/page_forecast.hpp"
#include "engines/scheduler/page_pool.hpp"
#include "engines/scheduler/prefix_tree.hpp"

namespace tidemill::engines {

/// Whether a sequence may start from what others have computed.
enum class PrefixUse : std::uint8_t {
  kShared,
  kNone,  // all its tokens have to be computed, since something of each is wanted
};

/// Weights as the planner knows them.
struct ServedWeights {
  std::string name;        // by content
  std::uint64_t step = 0;  // a sequence waits for its `min_step`
};

/// A sequence as the planner sees it. The first part is its owner's, who appends to `tokens` what
/// is drawn; the second part is the planner's alone.
struct PlannedSequence {
  std::vector<std::int32_t> tokens;  // the prompt, at least one; then what was generated
  std::int64_t prompt_length = 0;
  std::int64_t max_new_tokens = 0;
  std::uint64_t min_step = 0;  // starts once this step is served
  PrefixUse prefix_use = PrefixUse::kShared;
  /// What it starts with in place of what `AdmissionRule` names; null: that. Read when it starts.
  const ServedWeights* own_weights = nullptr;

  std::uint64_t serial = 0;         // submission order
  std::string weights;              // what it is computed with, once it has started
  std::int64_t num_cached = 0;      // tokens whose keys and values are in `pages`
  std::vector<std::int32_t> pages;  // empty: not running
  PrefixTree::Hold hold;
  HiddenRow row;  // after the last token, when that was cached before the sequence started

  [[nodiscard]] std::int64_t length() const noexcept {
    return static_cast<std::int64_t>(tokens.size());
  }
  /// Returns the number of tokens to compute before the next one can be drawn.
  [[nodiscard]] std::int64_t num_uncached() const noexcept { return length() - num_cached; }
  [[nodiscard]] bool has_response() const noexcept { return length() > prompt_length; }
  /// Returns the most tokens that are ever in the cache: the last one is not fed back.
  [[nodiscard]] std::int64_t most_cached() const noexcept {
    return prompt_length + (max_new_tokens > 0 ? max_new_tokens - 1 : 0);
  }
};

/// Which sequences may start, and what with.
struct AdmissionRule {
  bool newcomers = true;     // false: only sequences that were in flight before
  std::uint64_t step = 0;    // served now; a sequence waits for its `min_step`
  std::string_view weights;  // names what is served, by content
};

/// What bounds a planner.
struct PlannerOptions {
  std::int64_t page_tokens = 16;
  std::int64_t max_running = 256;
  /// The share of sequences that are preempted which the margin of the forecast aims at.
  double preempted_share = 0.006;
};

/// The most tokens of one iteration.
struct IterationBudget {
  std::int64_t tokens = 1;          // at least one is computed
  std::int64_t prefill_tokens = 1;  // of those, in chunks of sequences that have more than one
};

/// A sequence's next tokens to compute. None: its next token is drawn from `row`.
struct PlannedChunk {
  PlannedSequence* sequence = nullptr;
  std::int64_t num_tokens = 0;
};

/// What page `to` has to hold before anything is computed.
struct PageCopy {
  std::int32_t from = 0;
  std::int32_t to = 0;
};

/// One iteration.
struct IterationPlan {
  std::vector<PageCopy> copies;  // to be made in this order: one's source may be another's target
  std::vector<PlannedChunk> chunks;
  std::vector<PlannedSequence*> started;  // for the first time; with a chunk or without
  std::int64_t cached_tokens = 0;         // of the sequences that start: not to be computed
  std::int64_t preemptions = 0;
};

/// Waiting sequences, and those in flight: running, which hold pages, and preempted, which gave
/// theirs back and keep their tokens.
///
/// An iteration computes one token of each running sequence that has but one to compute, oldest
/// first; then chunks of longer rests within what the budget leaves. Sequences start oldest first
/// when the forecast of the pages that will be in use leaves room for them, or when nothing runs.
/// One that begins as a running one does waits until that one has computed what they share; only
/// for that may a younger one start before it. How far the forecast may be trusted is learned too.
///
/// When pages run out, what is cached and unused goes first, then the youngest running sequence is
/// preempted. Sequences older than it never are for its sake, and one that alone would not fit is
/// never submitted, so the oldest always gets on: nothing starves or deadlocks.
/// Threads: one call at a time.
class IterationPlanner {
public:
  /// `pool` must outlive it.
  IterationPlanner(PagePool& pool, const PlannerOptions& options);

  /// Queues a sequence, which must outlive its stay. Requires that `most_cached` tokens fit the
  /// pool.
  void submit(PlannedSequence& sequence);
  /// Forgets a sequence, wherever it is, and gives its pages back.
  void remove(PlannedSequence& sequence);
  /// Forgets a sequence that has ended by itself or at its limit: the forecast learns from it.
  void finish(PlannedSequence& sequence);

  /// Plans one iteration. Every chunk has its pages.
  [[nodiscard]] IterationPlan plan(const IterationBudget& budget, const AdmissionRule& rule);

  /// Tells that a chunk has been computed. `row`: the hidden state after the prompt's last token,
  /// when that was among its tokens; may be null.
  void advance(const PlannedChunk& chunk, HiddenRow row);

  /// Drops what is cached and unused until `pages` pages are free or nothing of it is left.
  void drop_cached(std::int64_t pages) { tree_.evict_until_free(pages); }
  /// The same, and then preempts running sequences, youngest first; returns how many.
  std::int64_t make_room(std::int64_t pages);
  /// Drops what was computed with other weights than those named.
  void keep_only(std::span<const std::string_view> weights) { tree_.keep_only(weights); }

  [[nodiscard]] bool any_in_flight() const noexcept {
    return !running_.empty() || !preempted_.empty();
  }
  /// Returns whether a sequence waits that `rule` lets start.
  [[nodiscard]] bool any_admissible(const AdmissionRule& rule) const;
  [[nodiscard]] std::int64_t num_running() const noexcept {
    return static_cast<std::int64_t>(running_.size());
  }
  /// Returns the number of pages that running sequences hold.
  [[nodiscard]] std::int64_t num_pages_in_use() const noexcept {
    return pool_.num_pages() - tree_.num_available();
  }
  [[nodiscard]] const PrefixTree& tree() const noexcept { return tree_; }

private:
  using Sequences = std::vector<PlannedSequence*>;

  // The margin follows what happens: a preemption widens it, and each sequence that ends narrows it
  // by so much that the two balance at the share aimed at.
  static constexpr double kFirstMargin = 0.85;
  static constexpr double kLeastMargin = -0.5;
  static constexpr double kMostMargin = 4.0;
  static constexpr double kMarginStep = 0.02;  // of one preemption

  enum class Start : std::uint8_t { kStarted, kWaits, kNoRoom };

  class Outlook;

  [[nodiscard]] std::int64_t pages_for(std::int64_t tokens) const noexcept {
    return (tokens + options_.page_tokens - 1) / options_.page_tokens;
  }
  [[nodiscard]] static PrefixTree::Sequence seen_by_tree(const PlannedSequence& sequence);
  bool grow(PlannedSequence& sequence, IterationPlan& plan);
  void preempt_youngest();
  void admit(const AdmissionRule& rule, IterationPlan& plan);
  bool admit_from(Sequences& from, const AdmissionRule& rule, Outlook& outlook,
                  IterationPlan& plan);
  Start start(PlannedSequence& sequence, const AdmissionRule& rule, Outlook& outlook,
              IterationPlan& plan);

  PagePool& pool_;
  PlannerOptions options_;
  PrefixTree tree_;
  LengthForecast lengths_;
  double margin_ = kFirstMargin;  // standard deviations, see `PageForecast`
  std::uint64_t next_serial_ = 0;
  Sequences running_;    // oldest first
  Sequences preempted_;  // oldest first
  Sequences waiting_;    // oldest first
};

}  // namespace tidemill::engines
