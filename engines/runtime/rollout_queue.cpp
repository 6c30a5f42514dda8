// SPDX-License-Identifier: Apache-2.0
#include "engines/runtime/rollout_queue.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.hpp"

namespace tidemill::engines {
namespace {

bool may_start(const RolloutSequence& sequence, const AdmissionRule& rule) {
  return rule.newcomers && sequence.request.min_step <= rule.step;
}

// Moves `sequence` from one list to its place by age in another.
void move_by_age(std::list<RolloutSequence>& from, std::list<RolloutSequence>::iterator sequence,
                 std::list<RolloutSequence>& to) {
  const auto younger = std::ranges::find_if(
      to, [&](const RolloutSequence& other) { return other.serial > sequence->serial; });
  to.splice(younger, from, sequence);
}

}  // namespace

std::int64_t most_cached_tokens(const RolloutRequest& request) noexcept {
  return static_cast<std::int64_t>(request.prompt_ids.size()) +
         std::max(request.max_new_tokens - 1, 0);
}

void RolloutQueue::push(RolloutSequence sequence) {
  sequence.serial = next_serial_++;
  waiting_.push_back(std::move(sequence));
}

bool RolloutQueue::contains(SampleId id) const {
  return std::ranges::any_of(
      std::initializer_list<const Sequences*>{&running_, &preempted_, &waiting_},
      [&](const Sequences* list) {
        return std::ranges::any_of(*list,
                                   [&](const RolloutSequence& s) { return s.request.id == id; });
      });
}

std::optional<RolloutSequence> RolloutQueue::take(SampleId id) {
  for (Sequences* list : {&running_, &preempted_, &waiting_}) {
    const auto found = std::ranges::find_if(
        *list, [&](const RolloutSequence& sequence) { return sequence.request.id == id; });
    if (found != list->end()) {
      RolloutSequence sequence = std::move(*found);
      list->erase(found);
      cache_.release(sequence.pages);
      sequence.pages.clear();
      return sequence;
    }
  }
  return std::nullopt;
}

std::vector<RolloutChunk> RolloutQueue::plan(std::int64_t tokens, const AdmissionRule& rule) {
  std::vector<RolloutChunk> chunks;
  std::int64_t left = std::max<std::int64_t>(tokens, 1);
  // Growing preempts the youngest, so it never takes pages from a chunk that is already planned.
  for (auto it = running_.begin(); it != running_.end() && left > 0;) {
    RolloutSequence& sequence = *it;
    if (sequence.num_uncached() == 1) {
      if (!grow(sequence)) {
        break;  // it was the youngest itself
      }
      chunks.push_back({&sequence, 1});
      --left;
    }
    ++it;
  }
  const std::size_t num_decoding = chunks.size();
  if (left > 0) {
    admit(rule);
  }
  std::size_t next_decoding = 0;
  for (RolloutSequence& sequence : running_) {
    if (next_decoding < num_decoding && chunks[next_decoding].sequence == &sequence) {
      ++next_decoding;
    } else if (left > 0) {
      const std::int64_t count = std::min(left, sequence.num_uncached());
      chunks.push_back({&sequence, count});
      left -= count;
    }
  }
  return chunks;
}

void RolloutQueue::make_room(std::int64_t pages) {
  while (cache_.num_free_pages() < pages && !running_.empty()) {
    preempt_youngest();
  }
}

bool RolloutQueue::any_admissible(const AdmissionRule& rule) const {
  return std::ranges::any_of(
      waiting_, [&](const RolloutSequence& sequence) { return may_start(sequence, rule); });
}

// Gets the page of the sequence's next token, unless it has to be preempted itself for that.
bool RolloutQueue::grow(RolloutSequence& sequence) {
  const std::int64_t missing =
      cache_.pages_for(sequence.length()) - static_cast<std::int64_t>(sequence.pages.size());
  while (missing > 0 && !cache_.allocate(missing, sequence.pages)) {
    const bool itself = &running_.back() == &sequence;
    preempt_youngest();
    if (itself) {
      return false;
    }
  }
  return true;
}

void RolloutQueue::preempt_youngest() {
  RolloutSequence& sequence = running_.back();
  cache_.release(sequence.pages);
  sequence.pages.clear();
  sequence.num_cached = 0;
  move_by_age(running_, std::prev(running_.end()), preempted_);
}

void RolloutQueue::admit(const AdmissionRule& rule) {
  while (!preempted_.empty()) {
    if (!start(preempted_, preempted_.begin())) {
      return;
    }
  }
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    const auto sequence = it++;
    if (may_start(*sequence, rule) && !start(waiting_, sequence)) {
      return;  // no younger one overtakes for being smaller
    }
  }
}

// Starts a sequence if its tokens and one page more fit: without that page it would soon be
// preempted again. One that never needs more pages starts without.
bool RolloutQueue::start(Sequences& from, Sequences::iterator sequence) {
  const std::int64_t pages = cache_.pages_for(sequence->length());
  const std::int64_t most = cache_.pages_for(most_cached_tokens(sequence->request));
  TIDEMILL_CHECK(most <= cache_.num_pages()) << most << " pages can never be free";
  if (static_cast<std::int64_t>(running_.size()) >= max_running_ ||
      cache_.num_free_pages() < std::min(pages + 1, most)) {
    return false;
  }
  TIDEMILL_CHECK(cache_.allocate(pages, sequence->pages));
  move_by_age(from, sequence, running_);
  return true;
}

}  // namespace tidemill::engines
