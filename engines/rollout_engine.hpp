// SPDX-License-Identifier: Apache-2.0
// The interface of a model that generates: requests in, sampled tokens out, iteration by iteration.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/ids.hpp"
#include "base/result.hpp"
#include "engines/priority.hpp"
#include "engines/sampling/sampling_options.hpp"
#include "engines/sampling/top_logprobs.hpp"
#include "engines/snapshot.hpp"
#include "engines/step.hpp"
#include "engines/version_span.hpp"

namespace tidemill::engines {

/// Why a rollout ended.
enum class FinishReason : std::uint8_t { kStop, kLength, kCancelled, kFailed };

/// Returns "stop", "length", "cancelled" or "failed".
[[nodiscard]] const char* finish_reason_name(FinishReason reason) noexcept;

/// An optional key for the random numbers of a request.
struct DrawKey {
  DrawKey() = default;
  DrawKey(std::uint64_t key) : is_set(true), value(key) {}  // NOLINT(google-explicit-constructor)

  bool is_set = false;
  std::uint64_t value = 0;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, DrawKey& x) {
  return f(x.is_set, x.value);
}

class Constraint;

/// An optional constraint on a response (engines/constraint/constraint.hpp), for requests within a
/// process. Serialization writes only whether there is one: a handle that is read back has lost it,
/// and engines refuse such a request.
struct ConstraintHandle {
  ConstraintHandle() = default;
  ConstraintHandle(std::shared_ptr<const Constraint> one)  // NOLINT(google-explicit-constructor)
      : is_set(one != nullptr), constraint(std::move(one)) {}

  bool is_set = false;
  std::shared_ptr<const Constraint> constraint;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, ConstraintHandle& x) {
  return f(x.is_set);
}

/// The maximum of `RolloutRequest::top_logprobs`.
inline constexpr std::int32_t kMaxTopLogprobs = 64;

/// One prompt to extend, or to score if `max_new_tokens` is 0 and `prompt_logprobs` is set.
struct RolloutRequest {
  /// Names the request: no other request of the engine has this id at the same time.
  SampleId id;
  std::vector<std::int32_t> prompt_ids;  // at least one
  SamplingOptions sampling;
  /// Random numbers are keyed by (seed, `key`, token position), so a request samples the same
  /// tokens whatever else is in its batch.
  std::uint64_t seed = 0;
  /// If set, keys the random numbers in place of `id`, so that requests with different ids can
  /// sample the same tokens.
  DrawKey draw_key;
  std::int32_t max_new_tokens = 0;
  /// The response ends with the first generated token that is one of these.
  std::vector<std::int32_t> stop_ids;
  /// The response ends once its text contains one of these, even across token boundaries.
  std::vector<std::string> stop_strings;
  /// Permits only tokens with which the response can satisfy the constraint, and `stop_ids` only
  /// once it does. If `stop_ids` is empty, the response also ends when nothing else can follow.
  ConstraintHandle constraint;
  /// The name of the loaded adapter that generates. If empty, the policy that snapshots update
  /// generates.
  std::string adapter;
  /// The request starts only once the engine serves this step of its line or a later one.
  std::uint64_t min_step = 0;
  /// Limits the generation of the response, for programs that embed the engine; runs set no limit.
  /// Once this time has passed since the first iteration that worked on the request, the request
  /// ends with `kCancelled` and returns the tokens generated until then. Waiting for its turn or
  /// for `min_step` does not count. Zero means no limit. An engine without a clock refuses any
  /// other value.
  Duration time_limit{0};
  /// Whether to keep the activations of this request's tokens for training, while there is memory
  /// for them (`RuntimeOptions::generated_bytes`).
  bool keep_rows = false;
  /// Also returns the log-probability of every prompt token but the first.
  bool prompt_logprobs = false;
  /// Also returns this many of the most probable tokens at each response token, at most
  /// `kMaxTopLogprobs`.
  std::int32_t top_logprobs = 0;
  /// The same for every prompt token but the first.
  std::int32_t prompt_top_logprobs = 0;
  /// Also returns the raw logits after every prompt token (tokens x vocabulary), for `score`.
  bool prompt_logits = false;
  /// Requests of a higher priority start first and take the pages of lower ones, whose tokens are
  /// then computed again. No priority changes a bit.
  Priority priority = Priority::kNormal;
  /// Requests of one priority share the engine fairly among tenants; see
  /// engines/scheduler/fair_queue.hpp.
  std::string tenant = {};
  /// The request starts only from cached pages of requests with the same salt.
  std::string cache_salt = {};

  /// Returns `draw_key` if it is set, otherwise the id.
  [[nodiscard]] std::uint64_t key() const noexcept {
    return draw_key.is_set ? draw_key.value : id.value;
  }
};

/// The result of a request. Every accepted request gets exactly one.
struct RolloutResult {
  SampleId id;
  std::vector<std::int32_t> response_ids;  // including the stop token
  /// log_softmax(raw logits / T) of each response token, without constraint, bias, penalty or
  /// filter. T is the temperature, or 1 for greedy requests.
  std::vector<float> behavior_logprobs;
  std::vector<VersionSpan> versions;  // covers response_ids
  FinishReason finish_reason = FinishReason::kFailed;
  std::string error;                   // the reason, if kFailed or past its time limit
  std::vector<float> prompt_logprobs;  // entry t: of prompt token t + 1, given those before it
  std::vector<float> prompt_logits;    // prompt tokens x vocabulary
  /// The most probable tokens at each response token, most probable first, as many for each as the
  /// request says. Their log-probabilities are those of `behavior_logprobs`' distribution.
  std::vector<TokenLogprob> top_logprobs = {};
  /// The same at each prompt token but the first, of log_softmax(raw logits).
  std::vector<TokenLogprob> prompt_top_logprobs = {};
  std::int64_t cached_tokens = 0;  // prompt tokens found in the cache when the request started
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, RolloutRequest& x) {
  return f(x.id, x.prompt_ids, x.sampling, x.seed, x.draw_key, x.max_new_tokens, x.stop_ids,
           x.stop_strings, x.constraint, x.adapter, x.min_step, x.time_limit, x.keep_rows,
           x.prompt_logprobs, x.top_logprobs, x.prompt_top_logprobs, x.prompt_logits, x.priority,
           x.tenant, x.cache_salt);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, RolloutResult& x) {
  return f(x.id, x.response_ids, x.behavior_logprobs, x.versions, x.finish_reason, x.error,
           x.prompt_logprobs, x.prompt_logits, x.top_logprobs, x.prompt_top_logprobs,
           x.cached_tokens);
}

/// The next tokens of a response that is being generated. The spans are valid during the call.
struct RolloutTokens {
  SampleId id;
  std::size_t first = 0;                     // index in the response of the first of the tokens
  std::span<const std::int32_t> ids;         // at least one
  std::span<const float> behavior_logprobs;  // one for each token
  std::span<const VersionSpan> versions;     // covers `ids`
  std::span<const TokenLogprob> top_logprobs = {};  // as in `RolloutResult`
};

/// Receives tokens and results.
///
/// The tokens of a request that `on_tokens` gets, one call after another, are exactly those of its
/// result, however the request ends: preemption repeats none. The result follows its last tokens.
class RolloutSink {
public:
  virtual ~RolloutSink() = default;
  /// Receives tokens as `RolloutEngine::step` generates them. Must not call the engine. By default,
  /// ignores them.
  virtual void on_tokens(const RolloutTokens& /*tokens*/) {}
  /// Receives the result of a request. `RolloutEngine::step` and `cancel` call it.
  virtual void on_rollout(RolloutResult result) = 0;
};

/// What happens to sequences in flight when new weights arrive.
enum class WeightArrival : std::uint8_t {
  kFinish,  // the engine switches once the sequences in flight have ended; no other sequence
            // starts before then
};

/// Generates with one model for many requests at a time (continuous batching).
///
/// Threads: one call at a time. No call blocks longer than one iteration, except that `load` takes
/// time proportional to the number of weights.
class RolloutEngine {
public:
  RolloutEngine() = default;
  RolloutEngine(const RolloutEngine&) = delete;
  RolloutEngine& operator=(const RolloutEngine&) = delete;
  virtual ~RolloutEngine() = default;

  /// Queues `request`. Its result goes to `sink`, which must outlive the request.
  /// Errors: `kInvalidArgument` (empty prompt, id already queued, token outside the vocabulary,
  /// sampling options out of range), `kNotFound` (no adapter of that name is loaded),
  /// `kResourceExhausted` (can never fit the context or the cache).
  [[nodiscard]] virtual Status submit(RolloutRequest request, RolloutSink& sink) = 0;

  /// Ends a request with `kCancelled` and the tokens generated so far. Ignores unknown ids.
  virtual void cancel(SampleId id) = 0;

  /// Verifies the digests of new weights, and serves the weights as `arrival` says.
  /// Errors: `kCorruptData` (digest), `kInvalidArgument` (names or shapes), `kStaleVersion` (older
  /// than the newest version loaded), `kUnavailable` (the base differs from that of named adapters
  /// in use).
  [[nodiscard]] virtual Status load(Snapshot snapshot, WeightArrival arrival) = 0;

  /// Returns the version that would generate for a request that starts now.
  [[nodiscard]] virtual PolicyVersion serving_version() const = 0;

  /// Returns whether `step` has anything to do.
  [[nodiscard]] virtual bool has_work() const = 0;

  /// Runs one iteration within `budget`.
  /// A failed step ends no request; the caller decides how to continue.
  [[nodiscard]] virtual Result<StepReport> step(const StepBudget& budget) = 0;
};

}  // namespace tidemill::engines
