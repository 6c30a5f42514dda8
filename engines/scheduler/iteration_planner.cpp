// SPDX-License-Identifier: Apache-2.0
#include "engines/scheduler/iteration_planner.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/check.hpp"

namespace tidemill::engines {
namespace {

using Sequences = std::vector<PlannedSequence*>;

bool has_started(const PlannedSequence& sequence) {
  return !sequence.weights.empty();
}

// A sequence that has started may always continue, with the weights that it has.
bool may_start(const PlannedSequence& sequence, const AdmissionRule& rule) {
  const std::uint64_t served =
      sequence.own_weights != nullptr ? sequence.own_weights->step : rule.step;
  return has_started(sequence) || (rule.admit_new && sequence.min_step <= served);
}

std::string_view weights_for(const PlannedSequence& sequence, const AdmissionRule& rule) {
  return has_started(sequence)             ? sequence.weights
         : sequence.own_weights != nullptr ? sequence.own_weights->name
                                           : rule.weights;
}

// Whether `a` precedes `b`. Both have started.
bool precedes(const PlannedSequence* a, const PlannedSequence* b) {
  return a->priority != b->priority ? a->priority > b->priority : a->start_order < b->start_order;
}

// Inserts `sequence` into `list`, which is in order of precedence.
void insert_in_order(Sequences& list, PlannedSequence& sequence) {
  list.insert(std::ranges::upper_bound(list, &sequence, precedes), &sequence);
}

bool erase_from(Sequences& list, const PlannedSequence& sequence) {
  const auto found = std::ranges::lower_bound(list, &sequence, precedes);
  if (found == list.end() || *found != &sequence) {
    return false;
  }
  list.erase(found);
  return true;
}

}  // namespace

// Forecasts the pages that running sequences of a priority, and of those above it, will need. Those
// below are not counted, because sequences that start or grow may take their pages. The forecast is
// computed when the first candidate needs it, and updated as sequences start.
class IterationPlanner::AdmissionForecast {
public:
  AdmissionForecast(const IterationPlanner& planner, Priority priority)
      : planner_(planner), priority_(priority) {
    reset();
  }

  // Returns whether `candidate` may start, which would take `pages_new` pages into use now.
  bool has_room(const PlannedSequence& candidate, std::int64_t pages_new) {
    if (counted_ == 0) {
      return true;  // any submitted sequence fits alone
    }
    const std::int64_t all = planner_.pool_.num_pages();
    if (worst_case() + pages_new + remaining_pages(candidate) <= all) {
      return true;
    }
    look_ahead(candidate.max_new_tokens);
    return forecast_->fits(describe(candidate, pages_new), pages_new, all);
  }

  void started(const PlannedSequence& sequence, std::int64_t pages_new) {
    ++counted_;
    if (forecast_.has_value()) {
      forecast_->start(describe(sequence, pages_new), pages_new);
    }
  }

  // Forgets what it has computed, because a sequence was preempted.
  void reset() {
    const auto above = std::ranges::partition_point(
        planner_.running_,
        [this](const PlannedSequence* sequence) { return sequence->priority >= priority_; });
    counted_ = static_cast<std::size_t>(above - planner_.running_.begin());
    forecast_.reset();
    survivals_.clear();
  }

private:
  // The sequences that count.
  [[nodiscard]] std::span<PlannedSequence* const> running() const {
    return std::span(planner_.running_).first(counted_);
  }

  // Returns the pages in use without those that only sequences of lower priorities use. Pages that
  // several of those share count as in use.
  [[nodiscard]] std::int64_t pages_in_use() const {
    std::int64_t pages = planner_.num_pages_in_use();
    for (const PlannedSequence* below : std::span(planner_.running_).subspan(counted_)) {
      pages -= planner_.tree_.num_exclusive(below->hold, below->pages);
    }
    return pages;
  }

  // Returns the number of pages that a sequence may still need.
  [[nodiscard]] std::int64_t remaining_pages(const PlannedSequence& sequence) const {
    return planner_.pages_for(sequence.max_cached()) - planner_.pages_for(sequence.length());
  }

  // Returns the pages in use if all running sequences reach their limits and none releases a page.
  [[nodiscard]] std::int64_t worst_case() const {
    std::int64_t pages = pages_in_use();
    for (const PlannedSequence* sequence : running()) {
      pages += std::max<std::int64_t>(remaining_pages(*sequence), 0);
    }
    return pages;
  }

  ForecastSequence describe(const PlannedSequence& sequence, std::int64_t pages_released) {
    ForecastSequence seen;
    seen.length = sequence.length();
    seen.response_length = sequence.length() - sequence.prompt_length;
    seen.max_response_length = sequence.max_new_tokens;
    seen.pages_held = planner_.pages_for(sequence.length());
    seen.pages_released = pages_released;
    seen.survival = &survival_of(sequence.max_new_tokens);
    return seen;
  }

  const Survival& survival_of(std::int64_t max_new_tokens) {
    const std::size_t index = LengthForecast::class_of(max_new_tokens);
    const auto found = survivals_.find(index);
    if (found != survivals_.end()) {
      return found->second;
    }
    std::vector<std::int64_t> lengths;
    const auto add = [&](const Sequences& list) {
      for (const PlannedSequence* sequence : list) {
        if (LengthForecast::class_of(sequence->max_new_tokens) == index) {
          lengths.push_back(sequence->length() - sequence->prompt_length);
        }
      }
    };
    add(planner_.running_);
    for (const Level& level : planner_.levels_) {
      add(level.preempted);
    }
    return survivals_.emplace(index, planner_.lengths_.survival(index, std::move(lengths)))
        .first->second;
  }

  // Ensures that there is a forecast that looks at least `iterations` iterations ahead.
  void look_ahead(std::int64_t iterations) {
    iterations = std::max(iterations, max_remaining_tokens());
    if (forecast_.has_value() && iterations <= iterations_) {
      return;
    }
    iterations_ = iterations;
    forecast_.emplace(planner_.options_.page_tokens, pages_in_use(), iterations, planner_.margin_);
    for (const PlannedSequence* sequence : running()) {
      forecast_->add(
          describe(*sequence, planner_.tree_.num_exclusive(sequence->hold, sequence->pages)));
    }
  }

  [[nodiscard]] std::int64_t max_remaining_tokens() const {
    std::int64_t longest = 1;
    for (const PlannedSequence* sequence : running()) {
      longest = std::max(longest,
                         sequence->prompt_length + sequence->max_new_tokens - sequence->length());
    }
    return longest;
  }

  const IterationPlanner& planner_;
  Priority priority_;
  std::size_t counted_ = 0;                    // running sequences, from the first
  std::map<std::size_t, Survival> survivals_;  // by `LengthForecast::class_of`
  std::optional<PageForecast> forecast_;
  std::int64_t iterations_ = 0;
};

IterationPlanner::IterationPlanner(PagePool& pool, const PlannerOptions& options)
    : pool_(pool), options_(options), tree_(pool, options.page_tokens) {
  TIDEMILL_CHECK(options.max_running >= 1) << options.max_running;
}

void IterationPlanner::submit(PlannedSequence& sequence) {
  TIDEMILL_CHECK(!sequence.tokens.empty() && pages_for(sequence.max_cached()) <= pool_.num_pages())
      << sequence.max_cached() << " tokens never fit";
  sequence.serial = next_serial_++;
  level_of(sequence).waiting.push(sequence);
}

void IterationPlanner::remove(PlannedSequence& sequence) {
  Level& level = level_of(sequence);
  if (level.waiting.remove(sequence)) {
    return;
  }
  if (erase_from(running_, sequence)) {
    tree_.leave(sequence.hold, sequence.pages);
  } else {
    TIDEMILL_CHECK(erase_from(level.preempted, sequence)) << "lost sequence " << sequence.serial;
    --num_preempted_;
  }
}

void IterationPlanner::finish(PlannedSequence& sequence) {
  lengths_.add(sequence.max_new_tokens, sequence.length() - sequence.prompt_length);
  margin_ = std::max(margin_ - kMarginStep * options_.preempted_share, kMinMargin);
  remove(sequence);
}

IterationPlan IterationPlanner::plan(const IterationBudget& budget, const AdmissionRule& rule) {
  IterationPlan plan;
  std::int64_t left = std::max<std::int64_t>(budget.tokens, 1);
  // `grow` preempts the last sequence, so it never takes pages from a chunk already planned.
  for (std::size_t i = 0; i < running_.size() && left > 0; ++i) {
    PlannedSequence& sequence = *running_[i];
    if (sequence.num_uncached() == 1) {
      if (!grow(sequence, plan)) {
        break;  // it was itself the last, and has been preempted
      }
      plan.chunks.push_back({&sequence, 1});
      --left;
    }
  }
  if (left > 0) {
    const std::size_t planned = plan.chunks.size();
    admit(rule, plan);
    left += static_cast<std::int64_t>(planned - plan.chunks.size());  // of displaced sequences
  }
  const std::size_t num_decoding = plan.chunks.size();
  std::int64_t left_to_prefill = std::max<std::int64_t>(std::min(left, budget.prefill_tokens), 1);
  std::int64_t left_to_target = budget.prefill_target;
  std::size_t next_decoding = 0;
  for (PlannedSequence* sequence : running_) {
    if (next_decoding < num_decoding && plan.chunks[next_decoding].sequence == sequence) {
      ++next_decoding;
    } else if (sequence->num_uncached() == 0) {
      plan.chunks.push_back({sequence, 0});
    } else if (left > 0 && left_to_prefill > 0 && left_to_target > 0) {
      const std::int64_t count = std::min(left_to_prefill, sequence->num_uncached());
      plan.chunks.push_back({sequence, count});
      left -= count;
      left_to_prefill -= count;
      left_to_target -= count;
    }
  }
  return plan;
}

void IterationPlanner::advance(const PlannedChunk& chunk, HiddenRow row) {
  PlannedSequence& sequence = *chunk.sequence;
  sequence.num_cached += chunk.num_tokens;
  FairQueue::charge(sequence);
  sequence.row = nullptr;
  if (sequence.prefix_use == PrefixUse::kShared) {
    tree_.advance(tree_sequence(sequence), sequence.num_cached, sequence.pages, sequence.hold,
                  std::move(row));
  }
}

std::int64_t IterationPlanner::make_room(std::int64_t pages) {
  std::int64_t preempted = 0;
  tree_.evict_until_free(pages);
  while (pool_.num_free() < pages && !running_.empty()) {
    preempt_last();
    ++preempted;
    tree_.evict_until_free(pages);
  }
  return preempted;
}

std::int64_t IterationPlanner::largest_need() const noexcept {
  std::int64_t most = 0;
  const auto see = [&](const PlannedSequence* sequence) {
    most = std::max(most, pages_for(sequence->max_cached()));
  };
  std::ranges::for_each(running_, see);
  for (const Level& level : levels_) {
    std::ranges::for_each(level.preempted, see);
    level.waiting.for_each(see);
  }
  return most;
}

bool IterationPlanner::any_admissible(const AdmissionRule& rule) const {
  return std::ranges::any_of(levels_, [&](const Level& level) {
    return level.waiting.any_of(
        [&](const PlannedSequence& sequence) { return may_start(sequence, rule); });
  });
}

std::int64_t IterationPlanner::num_waiting() const noexcept {
  std::int64_t count = num_preempted_;
  for (const Level& level : levels_) {
    count += static_cast<std::int64_t>(level.waiting.size());
  }
  return count;
}

PrefixTree::Sequence IterationPlanner::tree_sequence(const PlannedSequence& sequence) {
  return {{sequence.weights, sequence.cache_salt}, sequence.tokens, sequence.prompt_length};
}

// Allocates the page of the sequence's next token, preempting sequences after it if necessary.
// Returns false if the sequence itself was preempted.
bool IterationPlanner::grow(PlannedSequence& sequence, IterationPlan& plan) {
  const std::int64_t missing =
      pages_for(sequence.length()) - static_cast<std::int64_t>(sequence.pages.size());
  while (missing > 0 && !tree_.allocate(missing, sequence.pages)) {
    const bool itself = running_.back() == &sequence;
    if (!runs_below(sequence.priority)) {
      margin_ = std::min(margin_ + kMarginStep, kMaxMargin);
    }
    preempt_last();
    ++plan.preemptions;
    if (itself) {
      return false;
    }
  }
  return true;
}

void IterationPlanner::preempt_last() {
  PlannedSequence& sequence = *running_.back();
  tree_.leave(sequence.hold, sequence.pages);
  sequence.num_cached = 0;
  sequence.row = nullptr;
  running_.pop_back();
  insert_in_order(level_of(sequence).preempted, sequence);
  ++num_preempted_;
}

// Preempts the last sequence for one of a higher priority that starts. If the plan has a
// chunk of it, that is the last one.
void IterationPlanner::displace_last(IterationPlan& plan) {
  if (!plan.chunks.empty() && plan.chunks.back().sequence == running_.back()) {
    plan.chunks.pop_back();
  }
  preempt_last();
  ++plan.preemptions;
}

void IterationPlanner::admit(const AdmissionRule& rule, IterationPlan& plan) {
  for (auto level = levels_.rbegin(); level != levels_.rend(); ++level) {
    if (level->preempted.empty() && level->waiting.size() == 0) {
      continue;
    }
    const auto priority = static_cast<Priority>(levels_.rend() - level - 1);
    AdmissionForecast forecast(*this, priority);
    if (!admit_preempted(*level, rule, forecast, plan) ||
        !admit_waiting(*level, rule, forecast, plan)) {
      return;  // lower priorities get no room that this one waits for
    }
  }
}

// Starts the preempted sequences. Stops and returns false at the first one without room: no
// sequence starts before another because it is smaller.
bool IterationPlanner::admit_preempted(Level& level, const AdmissionRule& rule,
                                       AdmissionForecast& forecast, IterationPlan& plan) {
  Sequences left;
  bool room = true;
  for (PlannedSequence* sequence : level.preempted) {
    if (room) {
      const Start result = start(*sequence, rule, forecast, plan);
      room = result != Start::kNoRoom;
      if (result == Start::kStarted) {
        --num_preempted_;
        continue;
      }
    }
    left.push_back(sequence);
  }
  level.preempted = std::move(left);
  return room;
}

// Does the same with sequences that have not started and may.
bool IterationPlanner::admit_waiting(Level& level, const AdmissionRule& rule,
                                     AdmissionForecast& forecast, IterationPlan& plan) {
  if (!rule.admit_new) {
    return true;
  }
  FairQueue::Visit visit(level.waiting);
  while (PlannedSequence* sequence = visit.next()) {
    switch (may_start(*sequence, rule) ? start(*sequence, rule, forecast, plan) : Start::kWaits) {
      case Start::kStarted: visit.take(); break;
      case Start::kWaits: visit.skip(); break;
      case Start::kNoRoom: return false;
    }
  }
  return true;
}

// Finds room for a sequence, preempting those of lower priorities if necessary. There is room if
// its tokens and one more page fit. Without the extra page it would soon be preempted again. A
// sequence that never needs another page starts without it.
IterationPlanner::Start IterationPlanner::find_room(PlannedSequence& sequence,
                                                    const AdmissionRule& rule,
                                                    AdmissionForecast& forecast,
                                                    IterationPlan& plan, Room& room) {
  room.pages = pages_for(sequence.length());
  const std::int64_t wanted = std::min(room.pages + 1, pages_for(sequence.max_cached()));
  for (;;) {
    const bool full = num_running() >= options_.max_running;
    if (full && !runs_below(sequence.priority)) {
      return Start::kNoRoom;
    }
    room.match = {};
    if (sequence.prefix_use == PrefixUse::kShared) {
      room.match = tree_.find({weights_for(sequence, rule), sequence.cache_salt}, sequence.tokens);
      if (room.match.wait) {
        return Start::kWaits;
      }
    }
    room.shared = std::ssize(room.match.shared);
    const std::int64_t idle = tree_.num_idle(room.match);
    room.taken = room.pages - room.shared + idle;
    if (!full && tree_.num_available() - idle >= wanted - room.shared &&
        forecast.has_room(sequence, room.taken)) {
      return Start::kStarted;
    }
    if (!runs_below(sequence.priority)) {
      return Start::kNoRoom;
    }
    displace_last(plan);
    forecast.reset();
  }
}

IterationPlanner::Start IterationPlanner::start(PlannedSequence& sequence,
                                                const AdmissionRule& rule,
                                                AdmissionForecast& forecast, IterationPlan& plan) {
  Room room;
  const Start found = find_room(sequence, rule, forecast, plan, room);
  if (found != Start::kStarted) {
    return found;
  }
  if (!has_started(sequence)) {
    sequence.weights = weights_for(sequence, rule);
    sequence.start_order = next_start_++;
    plan.started.push_back(&sequence);
  }
  tree_.use(room.match, sequence.pages, sequence.hold);
  TIDEMILL_CHECK(tree_.allocate(room.pages - room.shared, sequence.pages));
  if (room.match.partial != nullptr) {
    plan.copies.push_back({room.match.partial_page, sequence.pages.back()});
  }
  sequence.num_cached = room.match.num_tokens;
  sequence.row = room.match.row;
  plan.cached_tokens += room.match.num_tokens;
  if (sequence.prefix_use == PrefixUse::kShared && room.match.row == nullptr) {
    tree_.expect(tree_sequence(sequence), sequence.pages, sequence.hold);
  }
  forecast.started(sequence, room.taken);
  insert_in_order(running_, sequence);
  return Start::kStarted;
}

}  // namespace tidemill::engines
