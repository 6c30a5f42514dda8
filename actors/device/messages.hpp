// SPDX-License-Identifier: Apache-2.0
// What is asked of a device, and what it answers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.hpp"
#include "engines/rollout_engine.hpp"
#include "engines/snapshot.hpp"
#include "engines/train_engine.hpp"

namespace tidemill::actors {

/// One optimizer step's sequences.
struct TrainMinibatch {
  std::vector<engines::TrainSequence> sequences;
  /// Those of `sequences` that were sampled by the very weights the job starts from. In the first
  /// minibatch their behavior log-probabilities are compared with the trainer's.
  std::vector<SampleId> on_policy;
};

/// One batch to train on and publish.
struct TrainJob {
  std::vector<TrainMinibatch> minibatches;
  /// Passes over the minibatches.
  std::uint32_t epochs = 1;
  /// Divides the logits, as it did when the responses were sampled.
  float temperature = 1.0F;
  /// Trains and publishes nothing: tells how probable the targets are under the weights.
  bool score_only = false;
  /// Fill `proximal_logprobs` from a forward pass under the weights before the first update.
  bool recompute_proximal = false;
  /// What the weights after the last update are called.
  PolicyVersion publish_as;
  /// Sequences whose behavior log-probabilities are compared with the training path's under the
  /// weights that sampled them, `probe_weights`. May share sequences with the minibatches.
  std::vector<engines::TrainSequence> probe;
  engines::Snapshot probe_weights;
};

/// How far the log-probabilities of rollout and training are apart.
struct LogprobGap {
  double max = 0.0;              // largest absolute difference, nats
  std::uint64_t num_tokens = 0;  // tokens compared
};

/// How probable targets are.
struct TargetScore {
  double logprob_sum = 0.0;       // nats; by sequence, then by token
  std::uint64_t num_targets = 0;  // tokens summed over
};

/// What became of a `TrainJob`.
struct TrainOutcome {
  std::vector<engines::UpdateReport> updates;  // one per minibatch and epoch, in order
  engines::Snapshot snapshot;
  LogprobGap gap;
  TargetScore score;  // of a job that only scores
};

/// What `restore` needs beside the last snapshot.
struct OptimizerState {
  TensorMap tensors;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, TrainMinibatch& x) {
  return f(x.sequences, x.on_policy);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, TrainJob& x) {
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

}  // namespace tidemill::actors
