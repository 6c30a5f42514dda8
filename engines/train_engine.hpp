// SPDX-License-Identifier: Apache-2.0
// The view of a model that trains: sequences and a loss in, gradients and new weights out.
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

namespace tidemill::engines {

/// One sequence of a training batch. Index t of every column belongs to token t, predicted from the
/// tokens before it; index 0 is unused. Columns a loss does not read may be empty.
struct TrainSequence {
  SampleId id;
  std::vector<std::int32_t> ids;            // (T)
  std::vector<std::uint8_t> response_mask;  // (T) 1: a target
  std::vector<float> advantages;            // (T)
  std::vector<float> behavior_logprobs;     // (T)
  std::vector<float> proximal_logprobs;     // (T)
  std::vector<float> reference_logprobs;    // (T)
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, TrainSequence& x) {
  return f(x.id, x.ids, x.response_mask, x.advantages, x.behavior_logprobs, x.proximal_logprobs,
           x.reference_logprobs);
}

/// The current log-probabilities of one sequence, and where a loss writes its gradient.
struct LossRow {
  const TrainSequence* sequence = nullptr;
  std::span<const float> logprobs;   // (T) under the trainer's weights; 0 where masked
  std::span<const float> entropies;  // (T)
  std::span<float> dlogprobs;        // (T) out: d loss / d logprob, zeroed before the call
  std::span<float> dentropies;       // (T) out: d loss / d entropy, zeroed before the call
};

/// Figures of a loss that add up over micro-batches.
using LossSums = std::map<std::string, double>;

/// A loss over the tokens of a batch. It knows the batch's global denominators, so that the sum
/// over micro-batches does not depend on how the batch was cut.
class TokenLoss {
public:
  virtual ~TokenLoss() = default;
  /// Writes the gradients of `rows` and adds to `sums`; "loss" is this micro-batch's share.
  /// Errors: `kInvalidArgument` naming the sequence, for columns that are missing or not finite.
  [[nodiscard]] virtual Status evaluate(std::span<const LossRow> rows, LossSums& sums) = 0;
};

/// What one optimizer step did.
struct UpdateReport {
  LossSums sums;
  double gradient_norm = 0.0;  // before clipping
  double learning_rate = 0.0;
  std::int64_t optimizer_step = 0;  // counts from 1
  /// Rows of the batch that generation had kept, and that were not run again.
  std::int64_t recalled_tokens = 0;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, UpdateReport& x) {
  return f(x.sums, x.gradient_norm, x.learning_rate, x.optimizer_step, x.recalled_tokens);
}

/// Trains one model.
///
/// A batch: `begin_batch`, `add` for each sequence, `step` until it reports no more, `update`. The
/// engine orders sequences by id, so the order of `add` does not matter. `commit` publishes.
/// Threads: one call at a time; no call blocks longer than one iteration, but `update`, `commit`
/// and `optimizer_state` take time in the number of trained weights.
class TrainEngine {
public:
  TrainEngine() = default;
  TrainEngine(const TrainEngine&) = delete;
  TrainEngine& operator=(const TrainEngine&) = delete;
  virtual ~TrainEngine() = default;

  /// Starts a batch whose logits are divided by `temperature`; `loss` must outlive it. With a null
  /// `loss` the batch is only scored: `logprobs` answers, no gradients, and `update` only ends it.
  [[nodiscard]] virtual Status begin_batch(TokenLoss* loss, float temperature) = 0;

  /// Adds a sequence; after a step, one whose id is above those of all that are there. Neighbours
  /// in the order of ids that begin alike cost less when they are added before the same step.
  /// Errors: `kInvalidArgument` (no batch, id, sizes, tokens), `kResourceExhausted` (longer than
  /// the context, or than the activation budget can hold).
  [[nodiscard]] virtual Status add(TrainSequence sequence) = 0;

  [[nodiscard]] virtual bool has_work() const = 0;

  /// Runs one micro-batch of at most `budget.tokens` (at least one sequence).
  /// Errors: of the loss; `kInternal` naming the sequence for a non-finite log-probability.
  [[nodiscard]] virtual Result<StepReport> step(const StepBudget& budget) = 0;

  /// Returns the log-probabilities (T) of a sequence of the current batch, once stepped.
  [[nodiscard]] virtual Result<std::vector<float>> logprobs(SampleId id) const = 0;
  /// Returns whether those come from what generation has kept: then they agree with the behavior's
  /// by construction. The first sequence of a batch is run in any case.
  [[nodiscard]] virtual bool recalled(SampleId /*id*/) const { return false; }

  /// Returns, for each of `sequences`, the log-probabilities (T) of its targets under `weights`, by
  /// the training path. For probes: it lays `weights` out anew unless they are the working ones.
  [[nodiscard]] virtual Result<std::vector<std::vector<float>>> score(
      const Snapshot& weights, std::span<const TrainSequence> sequences, float temperature) = 0;

  /// Clips, applies the optimizer, zeroes the gradients, ends the batch.
  /// Errors: `kInternal` naming the tensor for a non-finite gradient; the weights are unchanged
  /// then.
  [[nodiscard]] virtual Result<UpdateReport> update() = 0;

  /// Returns the working weights as an immutable snapshot of `version`.
  [[nodiscard]] virtual Result<Snapshot> commit(PolicyVersion version) = 0;

  /// Returns all that `restore` needs beside the last snapshot: optimizer moments and counters.
  [[nodiscard]] virtual Result<TensorMap> optimizer_state() const = 0;

  /// Continues from a committed snapshot and its optimizer state.
  /// Errors: `kCorruptData` (digest), `kInvalidArgument` (names, shapes).
  [[nodiscard]] virtual Status restore(const Snapshot& snapshot,
                                       const TensorMap& optimizer_state) = 0;
};

}  // namespace tidemill::engines
