// SPDX-License-Identifier: Apache-2.0
// Who generates next: requests from submission to their last token, and the cache pages they hold.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engines/rollout_engine.hpp"
#include "engines/sampling/stop_matcher.hpp"
#include "engines/transformer/kv_cache.hpp"

namespace tidemill::engines {

/// A request and how far it is.
struct RolloutSequence {
  RolloutRequest request;
  RolloutSink* sink = nullptr;
  std::optional<StopMatcher> stops;  // absent: no stop strings
  std::uint64_t serial = 0;          // submission order
  std::vector<std::int32_t> tokens;  // the prompt, then what was generated
  std::int64_t num_cached = 0;       // tokens whose keys and values are in `pages`
  std::int64_t num_scored = 0;       // prompt tokens whose scores are below
  std::vector<std::int32_t> pages;
  RolloutResult result;  // all but response_ids and finish_reason, as far as it is

  [[nodiscard]] std::int64_t prompt_length() const noexcept {
    return static_cast<std::int64_t>(request.prompt_ids.size());
  }
  [[nodiscard]] std::int64_t length() const noexcept {
    return static_cast<std::int64_t>(tokens.size());
  }
  /// Returns the number of tokens to compute before the next one can be drawn.
  [[nodiscard]] std::int64_t num_uncached() const noexcept { return length() - num_cached; }
  [[nodiscard]] bool has_response() const noexcept { return length() > prompt_length(); }
  [[nodiscard]] std::span<const std::int32_t> response() const {
    return std::span(tokens).subspan(request.prompt_ids.size());
  }
};

/// Returns the most tokens of `request` that are ever in the cache: the last one is not fed back.
[[nodiscard]] std::int64_t most_cached_tokens(const RolloutRequest& request) noexcept;

/// A sequence's next tokens to compute, in one batch.
struct RolloutChunk {
  RolloutSequence* sequence = nullptr;
  std::int64_t num_tokens = 0;
};

/// Which requests may start.
struct AdmissionRule {
  bool newcomers = true;   // false: only sequences that were in flight before
  std::uint64_t step = 0;  // served now; a request waits for its `min_step`
};

/// Waiting requests in submission order, and sequences in flight: running, which hold pages, and
/// preempted, which gave theirs back and keep their tokens.
///
/// When pages run out the youngest running sequence is preempted. Sequences older than it never
/// are for its sake, and a request that alone would not fit is never queued, so the oldest always
/// gets on: nothing starves or deadlocks.
class RolloutQueue {
public:
  /// `cache` must outlive it.
  RolloutQueue(KvCache& cache, std::int64_t max_running)
      : cache_(cache), max_running_(max_running) {}

  void push(RolloutSequence sequence);
  [[nodiscard]] bool contains(SampleId id) const;
  /// Takes a request out, wherever it is, and frees its pages.
  [[nodiscard]] std::optional<RolloutSequence> take(SampleId id);

  /// Chooses what to compute in one iteration, at most `tokens` tokens (at least one): one token of
  /// each running sequence that has but one to compute, oldest first; then longer rests in chunks.
  /// Starts sequences as `rule`, pages and the limit of running ones allow. Every chunk has its
  /// pages.
  [[nodiscard]] std::vector<RolloutChunk> plan(std::int64_t tokens, const AdmissionRule& rule);

  /// Preempts running sequences, youngest first, until `pages` pages are free or none is running.
  void make_room(std::int64_t pages);

  [[nodiscard]] bool any_in_flight() const noexcept {
    return !running_.empty() || !preempted_.empty();
  }
  /// Returns whether a request waits that `rule` lets start.
  [[nodiscard]] bool any_admissible(const AdmissionRule& rule) const;

private:
  using Sequences = std::list<RolloutSequence>;

  bool grow(RolloutSequence& sequence);
  void preempt_youngest();
  void admit(const AdmissionRule& rule);
  bool start(Sequences& from, Sequences::iterator sequence);

  KvCache& cache_;
  std::int64_t max_running_;
  std::uint64_t next_serial_ = 0;
  Sequences running_;    // oldest first
  Sequences preempted_;  // oldest first
  Sequences waiting_;    // oldest first
};

}  // namespace tidemill::engines
