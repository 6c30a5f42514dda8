// SPDX-License-Identifier: Apache-2.0
// The view of a model that generates: requests in, sampled tokens out, one iteration at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/ids.hpp"
#include "base/result.hpp"
#include "engines/sampling/sampling_options.hpp"
#include "engines/snapshot.hpp"
#include "engines/step.hpp"

namespace tidemill::engines {

/// Why a rollout ended.
enum class FinishReason : std::uint8_t { kStop, kLength, kCancelled, kFailed };

/// Returns "stop", "length", "cancelled" or "failed".
[[nodiscard]] const char* finish_reason_name(FinishReason reason) noexcept;

/// `num_tokens` consecutive response tokens produced by one version.
struct VersionSpan {
  PolicyVersion version;
  std::uint32_t num_tokens = 0;
  friend bool operator==(const VersionSpan&, const VersionSpan&) = default;
};

/// One prompt to continue (or, with `max_new_tokens` 0 and `prompt_logprobs`, to score).
struct RolloutRequest {
  SampleId id;
  std::vector<std::int32_t> prompt_ids;  // at least one
  SamplingOptions sampling;
  /// Random numbers are keyed by (seed, id, token position): whatever shares its batch, a request
  /// draws the same tokens.
  std::uint64_t seed = 0;
  std::int32_t max_new_tokens = 0;
  /// A generated token among these ends the response and is its last token.
  std::vector<std::int32_t> stop_ids;
  /// The response ends once its text contains one of these, across token borders too.
  std::vector<std::string> stop_strings;
  /// The name of the adapter that generates, one of those loaded beside the policy; empty: the
  /// policy that snapshots bring.
  std::string adapter;
  /// The request starts only once the engine serves this step of its line, or a later one.
  std::uint64_t min_step = 0;
  /// The request ends with `kCancelled` and the tokens so far once this time has passed since it
  /// was submitted. Zero: it may take as long as it takes.
  Duration time_limit{0};
  /// Training will ask for its rows: they are kept where there is memory for that
  /// (`RuntimeOptions::generated_bytes`).
  bool keep_rows = false;
  /// Also return the log-probability of every prompt token but the first.
  bool prompt_logprobs = false;
  /// Also return the raw logits after every prompt token (tokens x vocabulary; for `score`).
  bool prompt_logits = false;
};

/// What became of a request. Every accepted request gets exactly one.
struct RolloutResult {
  SampleId id;
  std::vector<std::int32_t> response_ids;  // the stop token included
  /// log_softmax(raw logits / T) of each response token; T = 1 when greedy; no bias, penalty,
  /// filter.
  std::vector<float> behavior_logprobs;
  std::vector<VersionSpan> versions;  // covers response_ids
  FinishReason finish_reason = FinishReason::kFailed;
  std::string error;                   // why, when kFailed, or when out of time
  std::vector<float> prompt_logprobs;  // entry t: of prompt token t + 1 given those before it
  std::vector<float> prompt_logits;    // prompt tokens x vocabulary
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, VersionSpan& x) {
  return f(x.version, x.num_tokens);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, RolloutRequest& x) {
  return f(x.id, x.prompt_ids, x.sampling, x.seed, x.max_new_tokens, x.stop_ids, x.stop_strings,
           x.adapter, x.min_step, x.time_limit, x.keep_rows, x.prompt_logprobs, x.prompt_logits);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, RolloutResult& x) {
  return f(x.id, x.response_ids, x.behavior_logprobs, x.versions, x.finish_reason, x.error,
           x.prompt_logprobs, x.prompt_logits);
}

/// Receives results; called from inside `RolloutEngine::step` or `cancel`.
class RolloutSink {
public:
  virtual ~RolloutSink() = default;
  virtual void on_rollout(RolloutResult result) = 0;
};

/// What happens to sequences in flight when new weights arrive. More ways come with deeper
/// asynchrony.
enum class WeightArrival : std::uint8_t {
  kFinish,  // the new weights serve once the sequences in flight have ended; nothing new starts
            // before
};

/// Generates from one model, many requests at a time (continuous batching).
///
/// Threads: one call at a time; no call blocks longer than one iteration.
class RolloutEngine {
public:
  RolloutEngine() = default;
  RolloutEngine(const RolloutEngine&) = delete;
  RolloutEngine& operator=(const RolloutEngine&) = delete;
  virtual ~RolloutEngine() = default;

  /// Queues `request`; its result goes to `sink`, which must outlive it.
  /// Errors: `kInvalidArgument` (empty prompt, id already queued, token outside the vocabulary,
  /// sampling options out of range), `kNotFound` (no adapter of that name is loaded),
  /// `kResourceExhausted` (could never fit the context or the cache).
  [[nodiscard]] virtual Status submit(RolloutRequest request, RolloutSink& sink) = 0;

  /// Ends a request with `kCancelled` and the tokens so far. Unknown ids are ignored.
  virtual void cancel(SampleId id) = 0;

  /// Takes new weights, verifies their digest, and serves them as `arrival` says.
  /// Errors: `kCorruptData` (digest), `kInvalidArgument` (names or shapes), `kStaleVersion` (older
  /// than what is served within one incarnation), `kUnavailable` (another base than that of named
  /// adapters which are in use).
  [[nodiscard]] virtual Status load(Snapshot snapshot, WeightArrival arrival) = 0;

  /// Returns the version that a request started now would be generated by.
  [[nodiscard]] virtual PolicyVersion serving() const = 0;

  /// Returns whether `step` has anything to do.
  [[nodiscard]] virtual bool has_work() const = 0;

  /// Runs one iteration within `budget`.
  /// Errors: any failure ends no request; the caller decides.
  [[nodiscard]] virtual Result<StepReport> step(const StepBudget& budget) = 0;
};

}  // namespace tidemill::engines
