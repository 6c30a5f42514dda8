// SPDX-License-Identifier: Apache-2.0
// The messages of a device.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.hpp"
#include "engines/rollout_engine.hpp"
#include "engines/runtime/named_adapters.hpp"
#include "engines/snapshot.hpp"
#include "engines/training_job.hpp"

namespace tidemill::actors {

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
  /// The directory of the adapter to load, in PEFT's format, on the machine of the device.
  std::string path;
  PolicyVersion version;  // of the adapter to load; see `NamedAdapter::version`
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
};

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
  return f(x.action, x.name, x.path, x.version);
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
           x.cached_tokens, x.train_tokens);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, TokenBatch& x) {
  return f(x.events);
}

}  // namespace tidemill::actors
