// SPDX-License-Identifier: Apache-2.0
// The interface of a model that trains: sequences and a loss in, gradients and new weights out.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/ids.hpp"
#include "base/result.hpp"
#include "engines/snapshot.hpp"
#include "engines/step.hpp"
#include "engines/version_span.hpp"

namespace tidemill::engines {

/// One sequence of a training batch. Index t of every column belongs to token t, which is predicted
/// from the tokens before it. Index 0 is unused. Columns that the loss does not read may be empty.
struct TrainSequence {
  SampleId id;
  std::vector<std::int32_t> ids;            // (T)
  std::vector<std::uint8_t> response_mask;  // (T) 1: a target
  std::vector<float> advantages;            // (T)
  std::vector<float> behavior_logprobs;     // (T)
  std::vector<float> proximal_logprobs;     // (T)
  std::vector<float> reference_logprobs;    // (T)
  /// The versions that generated the last tokens, in order; empty if no policy generated any.
  std::vector<VersionSpan> versions;
  /// (T) Multiplies a target's share of the loss; not negative. Empty: all weights are 1.
  std::vector<float> token_weights;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, TrainSequence& x) {
  return f(x.id, x.ids, x.response_mask, x.advantages, x.behavior_logprobs, x.proximal_logprobs,
           x.reference_logprobs, x.versions, x.token_weights);
}

/// Gives a loss the current log-probabilities of one sequence, and the buffers for its gradients.
struct LossRow {
  const TrainSequence* sequence = nullptr;
  std::span<const float> logprobs;   // (T) under the trainer's weights; 0 where masked
  std::span<const float> entropies;  // (T)
  std::span<float> dlogprobs;        // (T) out: d loss / d logprob, zeroed before the call
  std::span<float> dentropies;       // (T) out: d loss / d entropy, zeroed before the call
};

/// Metrics of a loss by name, as sums: those of two micro-batches can be added.
using LossSums = std::map<std::string, double>;

/// A loss over the tokens of a batch. It is created with the denominators of the whole batch, so
/// that the sum over micro-batches does not depend on how the batch is split.
class TokenLoss {
public:
  virtual ~TokenLoss() = default;
  /// Writes the gradients of `rows` and adds this micro-batch's share of each metric to `sums`. The
  /// metric "loss" is the loss itself.
  /// Errors: `kInvalidArgument` naming the sequence if a column is missing or not finite.
  [[nodiscard]] virtual Status evaluate(std::span<const LossRow> rows, LossSums& sums) = 0;
};

/// Reports what one optimizer step did.
struct UpdateReport {
  LossSums sums;
  double gradient_norm = 0.0;  // before clipping
  double learning_rate = 0.0;
  std::int64_t optimizer_step = 0;  // counts from 1
  /// Rows of the batch that were reused from generation instead of being computed again.
  std::int64_t recalled_tokens = 0;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, UpdateReport& x) {
  return f(x.sums, x.gradient_norm, x.learning_rate, x.optimizer_step, x.recalled_tokens);
}

/// Trains one model.
///
/// To train on a batch, call `begin_batch`, then `add` for each sequence, then `step` until it
/// reports no more work, then `update`. The engine orders sequences by id, so the order of `add`
/// does not matter. `commit` publishes the weights.
/// Threads: one call at a time. No call blocks longer than one iteration, except that `update`,
/// `commit` and `optimizer_state` take time proportional to the number of trained weights.
class TrainEngine {
public:
  TrainEngine() = default;
  TrainEngine(const TrainEngine&) = delete;
  TrainEngine& operator=(const TrainEngine&) = delete;
  virtual ~TrainEngine() = default;

  /// Starts a batch whose logits are divided by `temperature`. `loss` must outlive the batch. If
  /// `loss` is null, the batch is only scored: `logprobs` works, no gradients are computed, and
  /// `update` only ends the batch. A batch that is still open is abandoned.
  /// Errors: `kInvalidArgument` if `temperature` is not finite or too small.
  [[nodiscard]] virtual Status begin_batch(TokenLoss* loss, float temperature) = 0;

  /// Adds a sequence to the open batch. After the first `step`, its id must be greater than every
  /// id already in the batch. Sequences that are neighbors in id order and share a prompt cost
  /// less if they are added before the same step.
  /// Errors: `kInvalidArgument` (no open batch, bad id, bad sizes, bad tokens),
  /// `kResourceExhausted` (too long for the context, the activation budget or the cache).
  [[nodiscard]] virtual Status add(TrainSequence sequence) = 0;

  [[nodiscard]] virtual bool has_work() const = 0;

  /// Runs one micro-batch of at most `budget.tokens` (at least one sequence).
  /// Errors: those of the loss and of the device; `kInternal` naming the sequence if a
  /// log-probability is not finite.
  [[nodiscard]] virtual Result<StepReport> step(const StepBudget& budget) = 0;

  /// Returns the log-probabilities (T) of a sequence of the current batch.
  /// Errors: `kNotFound` if no `step` has computed the sequence yet.
  [[nodiscard]] virtual Result<std::vector<float>> logprobs(SampleId id) const = 0;
  /// Returns whether these log-probabilities come from rows kept by generation. Such values agree
  /// with the behavior log-probabilities by construction. The first sequence of a batch is always
  /// computed.
  [[nodiscard]] virtual bool recalled(SampleId /*id*/) const { return false; }

  /// Returns the log-probabilities (T) of the targets of each of `sequences` under `weights`,
  /// computed by the training path. Meant for probes, because it is slow: unless `weights` are the
  /// working weights, it lays them out for the device first.
  [[nodiscard]] virtual Result<std::vector<std::vector<float>>> score(
      const Snapshot& weights, std::span<const TrainSequence> sequences, float temperature) = 0;

  /// Clips the gradients, applies the optimizer, zeroes the gradients and ends the batch.
  /// Errors: `kInvalidArgument` (no open batch, or sequences that no `step` has computed);
  /// `kInternal` naming the tensor if a gradient is not finite. The weights are then unchanged.
  [[nodiscard]] virtual Result<UpdateReport> update() = 0;

  /// Ends an open batch without an update and drops its gradients; the weights keep the updates
  /// made before it. The engine no longer refers to the loss of the batch. Does nothing if no batch
  /// is open.
  virtual void abandon_batch() = 0;

  /// Publishes the working weights: returns them as an immutable snapshot of `version`.
  /// Errors: those of the allocator that supplies their memory.
  [[nodiscard]] virtual Result<Snapshot> commit(PolicyVersion version) = 0;

  /// Returns what `restore` needs in addition to the last snapshot: optimizer moments and counters.
  [[nodiscard]] virtual Result<TensorMap> optimizer_state() const = 0;

  /// Replaces the weights and the optimizer state with those of a commit.
  /// Errors: `kCorruptData` (digest), `kInvalidArgument` (names, shapes).
  [[nodiscard]] virtual Status restore(const Snapshot& snapshot,
                                       const TensorMap& optimizer_state) = 0;
};

}  // namespace tidemill::engines
