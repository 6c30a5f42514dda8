// SPDX-License-Identifier: Apache-2.0
#include "tests/engines/scheduler/simulated_generation.hpp"

#include <functional>
#include <set>
#include <utility>

#include "base/check.hpp"
#include "base/random.hpp"

namespace tidemill::engines {
namespace {

// Extends a hash that represents the keys and values of a position. Like them, it is a function of
// the weights and of the tokens up to the position.
std::uint64_t mixed(std::uint64_t state, std::uint64_t with) {
  state ^= with + 0x9e3779b97f4a7c15ULL + (state << 6U) + (state >> 2U);
  state *= 0xff51afd7ed558ccdULL;
  return state ^ (state >> 33U);
}

// The state before the first token. Keys and values do not depend on the salt, but pages of another
// salt are not to be found.
std::uint64_t first_state(const PlannedSequence& sequence) {
  return std::hash<std::string>{}(sequence.weights + "\n" + sequence.cache_salt);
}

std::uint64_t state_of(const PlannedSequence& sequence, std::int64_t position) {
  std::uint64_t state = first_state(sequence);
  for (std::int64_t i = 0; i <= position; ++i) {
    state = mixed(state, static_cast<std::uint64_t>(sequence.tokens[static_cast<std::size_t>(i)]));
  }
  return state;
}

}  // namespace

SimulatedGeneration::SimulatedGeneration(std::int64_t num_pages, const PlannerOptions& options,
                                         Pages pages)
    : pool_(num_pages),
      options_(options),
      pages_(pages),
      planner_(pool_, options),
      memory_(static_cast<std::size_t>(num_pages),
              std::vector<std::uint64_t>(static_cast<std::size_t>(options.page_tokens))) {}

std::size_t SimulatedGeneration::submit(SimulatedRequest request) {
  auto made = std::make_unique<Request>();
  made->sequence.tokens = request.prompt;
  made->sequence.prompt_length = static_cast<std::int64_t>(request.prompt.size());
  made->sequence.max_new_tokens = request.max_new_tokens;
  made->sequence.min_step = request.min_step;
  made->sequence.prefix_use = request.prefix_use;
  made->sequence.priority = request.priority;
  made->sequence.tenant = request.tenant;
  made->sequence.cache_salt = request.cache_salt;
  made->request = std::move(request);
  planner_.submit(made->sequence);
  by_sequence_[&made->sequence] = made.get();
  requests_.push_back(std::move(made));
  return requests_.size() - 1;
}

void SimulatedGeneration::cancel(std::size_t number) {
  Request& request = *requests_[number];
  if (request.in_queue) {
    planner_.remove(request.sequence);
    request.in_queue = false;
  }
}

void SimulatedGeneration::serve(std::string weights, std::uint64_t step) {
  TIDEMILL_CHECK(!planner_.any_in_flight());
  weights_ = std::move(weights);
  step_ = step;
  planner_.keep_only(std::vector<std::string_view>{weights_});
}

bool SimulatedGeneration::has_work() const {
  return planner_.any_in_flight() || planner_.any_admissible(rule());
}

double SimulatedGeneration::utilization() const {
  return static_cast<double>(planner_.num_pages_in_use()) / static_cast<double>(pool_.num_pages());
}

void SimulatedGeneration::borrow(std::int64_t pages) {
  planner_.make_room(pages);
  count_preempted();
  TIDEMILL_CHECK(pool_.allocate(pages, borrowed_));
  for (const std::int32_t page : borrowed_) {
    memory_[static_cast<std::size_t>(page)].assign(memory_[0].size(), 0);
  }
}

void SimulatedGeneration::give_back() {
  pool_.release(borrowed_);
  borrowed_.clear();
}

std::int32_t SimulatedGeneration::token_at(const Request& request, std::int64_t position) const {
  RandomStream random(request.request.seed, static_cast<std::uint64_t>(position));
  return static_cast<std::int32_t>(random.below(50));
}

float SimulatedGeneration::row_after(const PlannedSequence& sequence, std::int64_t position) const {
  return static_cast<float>(state_of(sequence, position) % 65521U);
}

void SimulatedGeneration::write(const PlannedChunk& chunk) {
  const PlannedSequence& sequence = *chunk.sequence;
  std::uint64_t state = sequence.num_cached == 0 ? first_state(sequence)
                                                 : state_of(sequence, sequence.num_cached - 1);
  for (std::int64_t i = 0; i < chunk.num_tokens; ++i) {
    const std::int64_t position = sequence.num_cached + i;
    const std::int32_t page =
        sequence.pages[static_cast<std::size_t>(position / options_.page_tokens)];
    state = mixed(state,
                  static_cast<std::uint64_t>(sequence.tokens[static_cast<std::size_t>(position)]));
    auto& slot = memory_[static_cast<std::size_t>(page)]
                        [static_cast<std::size_t>(position % options_.page_tokens)];
    slot = state;
  }
}

// Checks the keys and values that attention would read.
void SimulatedGeneration::check_cached(const PlannedSequence& sequence,
                                       std::int64_t num_cached) const {
  std::uint64_t state = first_state(sequence);
  for (std::int64_t position = 0; position < num_cached; ++position) {
    state = mixed(state,
                  static_cast<std::uint64_t>(sequence.tokens[static_cast<std::size_t>(position)]));
    const std::int32_t page =
        sequence.pages[static_cast<std::size_t>(position / options_.page_tokens)];
    TIDEMILL_CHECK(memory_[static_cast<std::size_t>(page)]
                          [static_cast<std::size_t>(position % options_.page_tokens)] == state)
        << "sequence " << sequence.serial << " would read wrong keys and values at " << position;
  }
}

void SimulatedGeneration::count_preempted() {
  for (const auto& request : requests_) {
    if (request->in_queue && request->ran && request->sequence.pages.empty() &&
        !request->was_preempted) {
      request->was_preempted = true;
      ++totals_.preempted_requests;
    }
  }
}

void SimulatedGeneration::step(const IterationBudget& budget) {
  const IterationPlan plan = planner_.plan(budget, rule());
  TIDEMILL_CHECK(!plan.chunks.empty()) << "the planner has work but planned nothing";
  ++totals_.iterations;
  totals_.cached_tokens += plan.cached_tokens;
  totals_.preemptions += plan.preemptions;
  if (plan.preemptions > 0) {
    count_preempted();
  }
  for (const PageCopy& copy : plan.copies) {
    memory_[static_cast<std::size_t>(copy.to)] = memory_[static_cast<std::size_t>(copy.from)];
  }
  std::int64_t tokens = 0;
  std::set<const PlannedSequence*> seen;
  for (const PlannedChunk& chunk : plan.chunks) {
    const PlannedSequence& sequence = *chunk.sequence;
    TIDEMILL_CHECK(seen.insert(&sequence).second) << "two chunks of one sequence";
    TIDEMILL_CHECK(sequence.weights == weights_);
    TIDEMILL_CHECK(static_cast<std::int64_t>(sequence.pages.size()) * options_.page_tokens >=
                   sequence.num_cached + chunk.num_tokens);
    by_sequence_.at(&sequence)->ran = true;
    tokens += chunk.num_tokens;
    totals_.prefill_tokens +=
        sequence.has_response() && sequence.num_uncached() == 1 ? 0 : chunk.num_tokens;
    if (pages_ == Pages::kChecked) {
      write(chunk);
    }
  }
  TIDEMILL_CHECK(tokens <= budget.tokens) << tokens << " of " << budget.tokens;
  totals_.computed_tokens += tokens;
  for (const PlannedChunk& chunk : plan.chunks) {
    PlannedSequence& sequence = *chunk.sequence;
    if (pages_ == Pages::kChecked) {
      check_cached(sequence, sequence.num_cached + chunk.num_tokens);
    }
    if (chunk.num_tokens == 0) {
      TIDEMILL_CHECK(sequence.row != nullptr && sequence.num_uncached() == 0);
      TIDEMILL_CHECK(sequence.row->at(0) == row_after(sequence, sequence.length() - 1));
    }
    const std::int64_t last_of_prompt = sequence.prompt_length - 1;
    HiddenRow row;
    if (last_of_prompt >= sequence.num_cached &&
        last_of_prompt < sequence.num_cached + chunk.num_tokens) {
      row = std::make_shared<const std::vector<float>>(1, row_after(sequence, last_of_prompt));
    }
    planner_.advance(chunk, std::move(row));
    if (sequence.num_uncached() > 0) {
      continue;
    }
    Request& request = *by_sequence_.at(&sequence);
    if (sequence.max_new_tokens > 0) {
      sequence.tokens.push_back(token_at(request, sequence.length()));
    }
    if (sequence.length() - sequence.prompt_length >= request.request.response_length) {
      planner_.finish(sequence);
      request.in_queue = false;
      ++totals_.finished;
    }
  }
}

}  // namespace tidemill::engines
