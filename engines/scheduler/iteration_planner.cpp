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

// Inserts `sequence` into `list`, which is sorted by age.
void insert_by_age(Sequences& list, PlannedSequence& sequence) {
  const auto younger =
      std::ranges::upper_bound(list, sequence.serial, {}, &PlannedSequence::serial);
  list.insert(younger, &sequence);
}

bool erase_from(Sequences& list, const PlannedSequence& sequence) {
  const auto found = std::ranges::lower_bound(list, sequence.serial, {}, &PlannedSequence::serial);
  if (found == list.end() || *found != &sequence) {
    return false;
  }
  list.erase(found);
  return true;
}

}  // namespace

// Forecasts the pages that running sequences will need. It is computed when the first candidate
// needs it, and updated as sequences start.
class IterationPlanner::AdmissionForecast {
public:
  explicit AdmissionForecast(const IterationPlanner& planner) : planner_(planner) {}

  // Returns whether `candidate` may start, which would take `pages_new` pages into use now.
  bool has_room(const PlannedSequence& candidate, std::int64_t pages_new) {
    if (planner_.running_.empty()) {
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
    if (forecast_.has_value()) {
      forecast_->start(describe(sequence, pages_new), pages_new);
    }
  }

private:
  // Returns the number of pages that a sequence may still need.
  [[nodiscard]] std::int64_t remaining_pages(const PlannedSequence& sequence) const {
    return planner_.pages_for(sequence.max_cached()) - planner_.pages_for(sequence.length());
  }

  // Returns the pages in use if all running sequences reach their limits and none releases a page.
  [[nodiscard]] std::int64_t worst_case() const {
    std::int64_t pages = planner_.num_pages_in_use();
    for (const PlannedSequence* sequence : planner_.running_) {
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
    std::vector<std::int64_t> running;
    for (const Sequences* list : {&planner_.running_, &planner_.preempted_}) {
      for (const PlannedSequence* sequence : *list) {
        if (LengthForecast::class_of(sequence->max_new_tokens) == index) {
          running.push_back(sequence->length() - sequence->prompt_length);
        }
      }
    }
    return survivals_.emplace(index, planner_.lengths_.survival(index, std::move(running)))
        .first->second;
  }

  // Ensures that there is a forecast that looks at least `iterations` iterations ahead.
  void look_ahead(std::int64_t iterations) {
    iterations = std::max(iterations, max_remaining_tokens());
    if (forecast_.has_value() && iterations <= iterations_) {
      return;
    }
    iterations_ = iterations;
    forecast_.emplace(planner_.options_.page_tokens, planner_.num_pages_in_use(), iterations,
                      planner_.margin_);
    for (const PlannedSequence* sequence : planner_.running_) {
      forecast_->add(
          describe(*sequence, planner_.tree_.num_exclusive(sequence->hold, sequence->pages)));
    }
  }

  [[nodiscard]] std::int64_t max_remaining_tokens() const {
    std::int64_t longest = 1;
    for (const PlannedSequence* sequence : planner_.running_) {
      longest = std::max(longest,
                         sequence->prompt_length + sequence->max_new_tokens - sequence->length());
    }
    return longest;
  }

  const IterationPlanner& planner_;
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
  waiting_.push_back(&sequence);
}

void IterationPlanner::remove(PlannedSequence& sequence) {
  if (erase_from(running_, sequence)) {
    tree_.leave(sequence.hold, sequence.pages);
  } else if (!erase_from(preempted_, sequence)) {
    TIDEMILL_CHECK(erase_from(waiting_, sequence)) << "unknown sequence " << sequence.serial;
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
  // `grow` preempts the youngest sequence, so it never takes pages from a chunk already planned.
  for (std::size_t i = 0; i < running_.size() && left > 0; ++i) {
    PlannedSequence& sequence = *running_[i];
    if (sequence.num_uncached() == 1) {
      if (!grow(sequence, plan)) {
        break;  // it was itself the youngest, and has been preempted
      }
      plan.chunks.push_back({&sequence, 1});
      --left;
    }
  }
  const std::size_t num_decoding = plan.chunks.size();
  if (left > 0) {
    admit(rule, plan);
  }
  std::int64_t left_to_prefill = std::max<std::int64_t>(std::min(left, budget.prefill_tokens), 1);
  std::size_t next_decoding = 0;
  for (PlannedSequence* sequence : running_) {
    if (next_decoding < num_decoding && plan.chunks[next_decoding].sequence == sequence) {
      ++next_decoding;
    } else if (sequence->num_uncached() == 0) {
      plan.chunks.push_back({sequence, 0});
    } else if (left > 0 && left_to_prefill > 0) {
      const std::int64_t count = std::min(left_to_prefill, sequence->num_uncached());
      plan.chunks.push_back({sequence, count});
      left -= count;
      left_to_prefill -= count;
    }
  }
  return plan;
}

void IterationPlanner::advance(const PlannedChunk& chunk, HiddenRow row) {
  PlannedSequence& sequence = *chunk.sequence;
  sequence.num_cached += chunk.num_tokens;
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
    preempt_youngest();
    ++preempted;
    tree_.evict_until_free(pages);
  }
  return preempted;
}

std::int64_t IterationPlanner::largest_need() const noexcept {
  std::int64_t most = 0;
  for (const Sequences* sequences : {&running_, &preempted_, &waiting_}) {
    for (const PlannedSequence* sequence : *sequences) {
      most = std::max(most, pages_for(sequence->max_cached()));
    }
  }
  return most;
}

bool IterationPlanner::any_admissible(const AdmissionRule& rule) const {
  return std::ranges::any_of(
      waiting_, [&](const PlannedSequence* sequence) { return may_start(*sequence, rule); });
}

PrefixTree::Sequence IterationPlanner::tree_sequence(const PlannedSequence& sequence) {
  return {sequence.weights, sequence.tokens, sequence.prompt_length};
}

// Allocates the page of the sequence's next token, preempting younger sequences if necessary.
// Returns false if the sequence itself was preempted.
bool IterationPlanner::grow(PlannedSequence& sequence, IterationPlan& plan) {
  const std::int64_t missing =
      pages_for(sequence.length()) - static_cast<std::int64_t>(sequence.pages.size());
  while (missing > 0 && !tree_.allocate(missing, sequence.pages)) {
    const bool itself = running_.back() == &sequence;
    preempt_youngest();
    ++plan.preemptions;
    margin_ = std::min(margin_ + kMarginStep, kMaxMargin);
    if (itself) {
      return false;
    }
  }
  return true;
}

void IterationPlanner::preempt_youngest() {
  PlannedSequence& sequence = *running_.back();
  tree_.leave(sequence.hold, sequence.pages);
  sequence.num_cached = 0;
  sequence.row = nullptr;
  running_.pop_back();
  insert_by_age(preempted_, sequence);
}

void IterationPlanner::admit(const AdmissionRule& rule, IterationPlan& plan) {
  if (preempted_.empty() && !any_admissible(rule)) {
    return;
  }
  AdmissionForecast forecast(*this);
  AdmissionRule preempted_rule = rule;
  preempted_rule.admit_new = true;
  if (admit_from(preempted_, preempted_rule, forecast, plan)) {
    admit_from(waiting_, rule, forecast, plan);
  }
}

// Starts the sequences of `from` that may start. Stops and returns false at the first one without
// room: a younger sequence never starts earlier because it is smaller.
bool IterationPlanner::admit_from(Sequences& from, const AdmissionRule& rule,
                                  AdmissionForecast& forecast, IterationPlan& plan) {
  Sequences left;
  bool room = true;
  for (PlannedSequence* sequence : from) {
    if (room && may_start(*sequence, rule)) {
      const Start result = start(*sequence, rule, forecast, plan);
      room = result != Start::kNoRoom;
      if (result == Start::kStarted) {
        continue;
      }
    }
    left.push_back(sequence);
  }
  from = std::move(left);
  return room;
}

// Starts a sequence if its tokens and one more page fit. Without the extra page it would soon be
// preempted again. A sequence that never needs another page starts without it.
IterationPlanner::Start IterationPlanner::start(PlannedSequence& sequence,
                                                const AdmissionRule& rule,
                                                AdmissionForecast& forecast, IterationPlan& plan) {
  if (num_running() >= options_.max_running) {
    return Start::kNoRoom;
  }
  PrefixTree::Match match;
  if (sequence.prefix_use == PrefixUse::kShared) {
    match = tree_.find(weights_for(sequence, rule), sequence.tokens);
    if (match.wait) {
      return Start::kWaits;
    }
  }
  const auto shared = static_cast<std::int64_t>(match.shared.size());
  const std::int64_t idle = tree_.num_idle(match);
  const std::int64_t pages = pages_for(sequence.length());
  const std::int64_t max_pages = pages_for(sequence.max_cached());
  if (tree_.num_available() - idle < std::min(pages + 1, max_pages) - shared ||
      !forecast.has_room(sequence, pages - shared + idle)) {
    return Start::kNoRoom;
  }
  if (!has_started(sequence)) {
    sequence.weights = weights_for(sequence, rule);
    plan.started.push_back(&sequence);
  }
  tree_.use(match, sequence.pages, sequence.hold);
  TIDEMILL_CHECK(tree_.allocate(pages - shared, sequence.pages));
  if (match.partial != nullptr) {
    plan.copies.push_back({match.partial_page, sequence.pages.back()});
  }
  sequence.num_cached = match.num_tokens;
  sequence.row = match.row;
  plan.cached_tokens += match.num_tokens;
  if (sequence.prefix_use == PrefixUse::kShared && match.row == nullptr) {
    tree_.expect(tree_sequence(sequence), sequence.pages, sequence.hold);
  }
  forecast.started(sequence, pages - shared + idle);
  insert_by_age(running_, sequence);
  return Start::kStarted;
}

}  // namespace tidemill::engines
