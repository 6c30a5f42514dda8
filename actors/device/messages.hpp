// SPDX-License-Identifier: Apache-2.0
// The messages of a device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <caf/allowed_unsafe_message_type.hpp>

#include "base/ids.hpp"
#include "engines/rollout_engine.hpp"
#include "engines/runtime/model_runtime.hpp"
#include "engines/snapshot.hpp"
#include "engines/training_job.hpp"

namespace tidemill::actors {

/// Makes the loss of one minibatch. It gets the whole minibatch, from which it takes the loss's
/// global denominators.
using LossFactory = std::function<Result<std::unique_ptr<engines::TokenLoss>>(
    std::span<const engines::TrainSequence>)>;

/// A training job to open over the base that the device serves.
struct JobOpening {
  JobId id;  // not 0
  engines::JobOptions options;
  LossFactory make_loss;  // of `train` requests
  double weight = 1.0;    // its share of the training time; greater than 0
};

/// Sequences whose log-probabilities, and gradients, a job computes.
struct PassRequest {
  engines::TrainBatch batch;
  /// Makes the loss whose gradients are added to those of the job. If empty, none are computed.
  LossFactory make_loss;
};

/// The log-probabilities of the targets of a `PassRequest`.
struct PassOutcome {
  std::vector<std::vector<float>> logprobs;  // (T) of each sequence, in the order of the request
  engines::LossSums sums;                    // of the loss, over this pass alone
};

/// The sequences of one optimizer step.
struct TrainMinibatch {
  std::vector<engines::TrainSequence> sequences;
  /// The ids of those `sequences` that were sampled by exactly the weights that the request starts
  /// from. In the first minibatch, their behavior log-probabilities are compared with those of
  /// training.
  std::vector<SampleId> on_policy;
};

/// One batch to train on and publish.
struct TrainRequest {
  std::vector<TrainMinibatch> minibatches;
  /// Passes over the minibatches.
  std::uint32_t epochs = 1;
  /// Divides the logits, as when the responses were sampled.
  float temperature = 1.0F;
  /// If true, the request neither trains nor publishes. It only computes the log-probabilities of
  /// the targets under the current weights.
  bool score_only = false;
  /// If true, `proximal_logprobs` are computed by a forward pass before the first update.
  bool recompute_proximal = false;
  /// The version of the weights after the last update.
  PolicyVersion publish_as;
  /// Sequences that `probe_weights` sampled. Their behavior log-probabilities are compared with
  /// those that the training path computes under `probe_weights`. The minibatches may contain them
  /// as well.
  std::vector<engines::TrainSequence> probe;
  engines::Snapshot probe_weights;
};

/// The difference between the log-probabilities of rollout and training.
struct LogprobGap {
  double max = 0.0;              // largest absolute difference, nats
  std::uint64_t num_tokens = 0;  // tokens compared
};

/// The log-probabilities of targets.
struct TargetScore {
  double logprob_sum = 0.0;       // nats; added by sequence, then by token
  std::uint64_t num_targets = 0;  // tokens summed over
};

/// The result of a `TrainRequest`.
struct TrainOutcome {
  std::vector<engines::UpdateReport> updates;  // of the minibatches with sequences, in order
  engines::Snapshot snapshot;
  LogprobGap gap;
  TargetScore score;  // of a request that only scores
};

/// What `TrainingJob::load` needs in addition to the last snapshot; see `TrainingJob::capture`.
struct OptimizerState {
  TensorMap tensors;
};

/// What `TrainingJob::load` takes: the weights and the optimizer's state of one commit.
struct TrainingState {
  engines::Snapshot weights;
  OptimizerState optimizer;
};

/// What to do with the adapters that requests may name.
enum class AdapterAction : std::uint8_t { kList, kLoad, kUnload };

/// Lists, loads or unloads adapters.
struct AdapterRequest {
  AdapterAction action = AdapterAction::kList;
  std::string name;  // to load or unload
  /// The directory of the adapter to load, in PEFT's format, on the machine of the device. If it is
  /// empty, `config` and `tensors` are the adapter.
  std::string path;
  /// Of the adapter to load; see `NamedAdapter::version`. The content of an adapter in a directory
  /// determines its version if this is `PolicyVersion()`.
  PolicyVersion version;
  std::string config = {};  // the text of an adapter_config.json
  TensorMap tensors = {};   // as in `engines::AdapterFiles`
  /// When the adapter to load was made, as clients are told. Unix time, seconds; 0: unknown.
  std::int64_t created = 0;
};

/// The adapters that requests may name, sorted by name.
struct AdapterList {
  std::vector<engines::LoadedAdapter> adapters;
};

/// The next tokens of one response; see `engines::RolloutTokens`.
struct TokenEvent {
  SampleId id;
  std::uint64_t first = 0;  // index in the response of the first of the tokens
  std::vector<std::int32_t> ids;
  std::vector<float> behavior_logprobs;
  std::vector<engines::VersionSpan> versions;
  std::vector<engines::TokenLogprob> top_logprobs;
};

/// The tokens that an iteration generated for one receiver.
struct TokenBatch {
  std::vector<TokenEvent> events;
};

/// How busy a device is, and what it has done since it started.
struct DeviceUsage {
  std::uint64_t running = 0;  // sequences that are generated
  std::uint64_t waiting = 0;  // sequences that have not started, or were preempted
  double kv_use = 0.0;        // the share of the cache's pages that sequences hold
  std::uint64_t preemptions = 0;
  std::uint64_t prefill_tokens = 0;
  std::uint64_t decode_tokens = 0;
  std::uint64_t cached_tokens = 0;  // of prompts, found in the cache
  std::uint64_t train_tokens = 0;
  std::uint64_t jobs = 0;        // training jobs that are open
  double rollout_seconds = 0.0;  // of iterations; 0 if the device has no latency goal
  double train_seconds = 0.0;
  /// The relative errors of predicted times, of iterations of generation and of training units: the
  /// median and the 99th percentile of the last ones.
  double iteration_error_p50 = 0.0;
  double iteration_error_p99 = 0.0;
  double unit_error_p50 = 0.0;
  double unit_error_p99 = 0.0;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, PassOutcome& x) {
  return f(x.logprobs, x.sums);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, TrainMinibatch& x) {
  return f(x.sequences, x.on_policy);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, TrainRequest& x) {
  return f(x.minibatches, x.epochs, x.temperature, x.score_only, x.recompute_proximal, x.publish_as,
           x.probe, x.probe_weights);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, LogprobGap& x) {
  return f(x.max, x.num_tokens);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, TargetScore& x) {
  return f(x.logprob_sum, x.num_targets);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, TrainOutcome& x) {
  return f(x.updates, x.snapshot, x.gap, x.score);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, OptimizerState& x) {
  return f(x.tensors);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, TrainingState& x) {
  return f(x.weights, x.optimizer);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, AdapterRequest& x) {
  return f(x.action, x.name, x.path, x.version, x.config, x.tensors, x.created);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, AdapterList& x) {
  return f(x.adapters);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, TokenEvent& x) {
  return f(x.id, x.first, x.ids, x.behavior_logprobs, x.versions, x.top_logprobs);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, DeviceUsage& x) {
  return f(x.running, x.waiting, x.kv_use, x.preemptions, x.prefill_tokens, x.decode_tokens,
           x.cached_tokens, x.train_tokens, x.jobs, x.rollout_seconds, x.train_seconds,
           x.iteration_error_p50, x.iteration_error_p99, x.unit_error_p50, x.unit_error_p99);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, TokenBatch& x) {
  return f(x.events);
}

}  // namespace tidemill::actors

// These hold functions, so they stay within the process.
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(std::shared_ptr<const tidemill::actors::JobOpening>)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(std::shared_ptr<const tidemill::actors::PassRequest>)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(std::shared_ptr<const tidemill::engines::OptimStep>)
