// SPDX-License-Identifier: Apache-2.0
// The interface of a training job, which trains one set of parameters on sequences with a loss.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
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
/// from the tokens before it. Index 0 of every column but `ids` is unused, because no token
/// precedes token 0. Columns that the loss does not read may be empty.
/// Units: log-probabilities and entropies are in nats, in the whole interface.
struct TrainSequence {
  SampleId id;
  std::vector<std::int32_t> ids;            // (T)
  std::vector<std::uint8_t> response_mask;  // (T) 1: a target
  std::vector<float> advantages;            // (T)
  std::vector<float> behavior_logprobs;     // (T)
  std::vector<float> proximal_logprobs;     // (T)
  std::vector<float> reference_logprobs;    // (T)
  /// The versions that generated the tokens at the end of `ids`, in token order. Empty if no policy
  /// generated any token.
  std::vector<VersionSpan> versions;
  /// (T) The factors of the targets in the loss, not negative. If empty, all factors are 1.
  std::vector<float> token_weights;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, TrainSequence& x) {
  return f(x.id, x.ids, x.response_mask, x.advantages, x.behavior_logprobs, x.proximal_logprobs,
           x.reference_logprobs, x.versions, x.token_weights);
}

/// Gives a loss the log-probabilities of one sequence, and the buffers for its gradients. Borrowed
/// until the call returns.
struct LossSequence {
  const TrainSequence* sequence = nullptr;
  std::span<const float> logprobs;   // (T) under the job's working weights; 0 where masked
  std::span<const float> entropies;  // (T)
  std::span<float> dlogprobs;        // (T) out: d loss / d logprob, zeroed before the call
  std::span<float> dentropies;       // (T) out: d loss / d entropy, zeroed before the call
};

/// Gives a loss n consecutive tokens of one sequence.
struct LossTokens {
  const TrainSequence* sequence = nullptr;
  std::size_t first = 0;             // the index of the first of these tokens
  std::span<const float> logprobs;   // (n) as in `LossSequence`
  std::span<const float> entropies;  // (n)
  std::span<float> dlogprobs;        // (n) out, zeroed before the call
  std::span<float> dentropies;       // (n) out, zeroed before the call
};

/// Metrics of a loss by name, as sums: those of two micro-batches can be added.
using LossSums = std::map<std::string, double>;

/// A loss over the tokens of a batch. It is created with the denominators of the whole batch, so
/// that the sum over micro-batches does not depend on how the batch is split. Its functions must
/// not call the job and must not throw. Gradients at tokens that are no targets are ignored.
class TokenLoss {
public:
  virtual ~TokenLoss() = default;
  /// Writes the gradients of `sequences` and adds this micro-batch's share of each metric to
  /// `sums`. The metric "loss" is the loss itself.
  /// Errors: `kInvalidArgument` naming the sequence if a column is missing or not finite.
  [[nodiscard]] virtual Status evaluate(std::span<const LossSequence> sequences,
                                        LossSums& sums) = 0;

  /// Returns whether the gradients at a token depend on the log-probability and the entropy of no
  /// other token. The engine then asks for gradients with `token_gradients` while it computes
  /// log-probabilities, which saves computing the logits a second time, and calls `evaluate` after
  /// that.
  [[nodiscard]] virtual bool is_token_local() const { return false; }
  /// Writes the gradients that `evaluate` writes at these tokens, with the same bits. Called only
  /// if `is_token_local`. Errors: as `evaluate`.
  [[nodiscard]] virtual Status token_gradients(const LossTokens& tokens);
};

/// Reports what one optimizer step did.
struct UpdateReport {
  LossSums sums;
  double gradient_norm = 0.0;  // before clipping
  double learning_rate = 0.0;
  std::int64_t optimizer_step = 0;  // counts from 1
  /// Tokens of the batches since the last update whose activations were recalled: generation had
  /// kept them, and training did not compute them again. A shared prompt counts once.
  std::int64_t recalled_tokens = 0;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, UpdateReport& x) {
  return f(x.sums, x.gradient_norm, x.learning_rate, x.optimizer_step, x.recalled_tokens);
}

/// A part of a minibatch, or all of it: the sequences of one call of `forward` or
/// `forward_backward`, which divides them into micro-batches.
struct TrainBatch {
  std::vector<TrainSequence> sequences;  // ids are unique
  float temperature = 1.0F;              // divides the logits
};

/// Overrides for one optimizer step. An absent field takes its value from the options of the job.
struct OptimStep {
  std::optional<double> learning_rate;  // absent: the value of the learning-rate schedule
  std::optional<double> beta1;
  std::optional<double> beta2;
  std::optional<double> epsilon;
  std::optional<double> weight_decay;
  std::optional<double> max_grad_norm;  // 0: no clipping
  /// The factor of (weights - anchor), which is added to the gradient before clipping. The anchor
  /// is the weights with which the job was opened, or those of the last `load`. A factor other than
  /// 0 requires `JobOptions::keeps_anchor`. Source: FedProx, Li et al. 2020, arXiv:1812.06127.
  double proximal = 0.0;
  /// Trained tensors that this step skips: their weights and moments stay unchanged, and their
  /// gradients do not count in the norm. The bias correction of AdamW counts the steps of the job
  /// and not those of each tensor, so after hundreds of steps without a tensor, its first update is
  /// up to three times as large as that of a new job.
  std::vector<std::string> frozen;
  /// Called by `advance`, on its thread, with each gradient after the proximal term and before
  /// clipping, those of frozen tensors included. `gradient` is valid only during the call.
  std::function<void(const std::string& name, std::span<const float> gradient)> on_gradient;
};

/// A training job: its parameters, its optimizer and its progress over a base model that other jobs
/// and generation may share.
///
/// Five functions start work: `forward`, `forward_backward`, `optim_step`, `save` and `capture`.
/// They fail with `kUnavailable` if there is work already. `advance` runs the work until `has_work`
/// is false; results are read after that. To train on a minibatch, call `forward_backward` for each
/// of its parts, then `optim_step`. `save` publishes the weights.
///
/// A part's sequences are ordered by id, so the order in which they are given does not matter. How
/// work is divided between calls of `advance`, and what the device does between them, changes no
/// bit.
/// Threads: one call at a time over all users of the model. `score` and `load` take time
/// proportional to what they compute or copy, and `cancel` completes a step that has begun to
/// change weights and sets gradients to zero. No other call blocks longer than its budget.
class TrainingJob {
public:
  TrainingJob() = default;
  TrainingJob(const TrainingJob&) = delete;
  TrainingJob& operator=(const TrainingJob&) = delete;
  virtual ~TrainingJob() = default;

  /// Starts computing the log-probabilities of the targets of `batch` under the working weights.
  /// Sequences that share a prompt and are neighbors in id order compute that prompt once.
  /// Errors: `kInvalidArgument` (temperature; or, naming the sequence, a duplicate id, wrong sizes,
  /// invalid tokens), `kResourceExhausted` (naming the sequence, if it is too long for the context,
  /// the activation budget or the cache). After an error, no work has started.
  [[nodiscard]] virtual Status forward(TrainBatch batch) = 0;

  /// Starts the work of `forward` and of a backward pass that adds the gradients of `loss` to those
  /// accumulated since the last `optim_step`. `loss` must outlive the work.
  /// Errors: as `forward`; `kResourceExhausted` if there is no memory for the gradients of a shared
  /// prompt.
  [[nodiscard]] virtual Status forward_backward(TrainBatch batch, TokenLoss& loss) = 0;

  /// Starts to clip the gradients, apply the optimizer and zero the gradients.
  /// Errors: `kInvalidArgument` (no gradients, a value out of range, an unknown name in `frozen`).
  [[nodiscard]] virtual Status optim_step(const OptimStep& step) = 0;
  [[nodiscard]] Status optim_step() { return optim_step(OptimStep()); }

  /// Starts to publish the working weights as an immutable snapshot of `version`. `advance` fails
  /// with `kInternal` naming the tensor if a weight is not finite.
  [[nodiscard]] virtual Status save(PolicyVersion version) = 0;

  /// Starts to copy what `load` needs in addition to the last snapshot: optimizer moments and
  /// counters and, if weights are published rounded, the f32 weights.
  [[nodiscard]] virtual Status capture() = 0;

  /// Returns whether `advance` has anything to do.
  [[nodiscard]] virtual bool has_work() const = 0;

  /// Describes the next unit that `advance` would run, for predictions of its time. The default is
  /// one kind for all units.
  [[nodiscard]] virtual UnitKind next_unit() const { return {}; }

  /// Runs at most `budget.units` units of the work that was started. Stops at the end of a
  /// micro-batch, which has at most `budget.tokens` tokens or is a single sequence. If other jobs
  /// hold too many pages of the cache, sets `StepReport::waits_for_pages` and does not start the
  /// next micro-batch. The caller must then advance those jobs first.
  /// Errors: those of the loss, of the device and of the allocator of snapshots; `kInternal` naming
  /// the sequence or the tensor if a log-probability or a gradient is not finite, or naming the
  /// sequence if `TokenLoss::token_gradients` and `evaluate` disagree;
  /// `kResourceExhausted` if there is too little memory to lay changed weights out. After an error,
  /// the job is in the state that `cancel` leaves.
  [[nodiscard]] virtual Result<StepReport> advance(const StepBudget& budget) = 0;

  /// Ends the work and drops all gradients. If an optimizer step has begun to change the weights,
  /// completes it first; otherwise the weights stay as they were before the work. The next call
  /// that starts work lays changed weights out first if that is not done. The job then holds no
  /// reference to a loss.
  virtual void cancel() = 0;

  /// Returns the log-probabilities (T) of a sequence of the last batch. Available until the next
  /// batch, optimizer step, `cancel` or `load`.
  /// Errors: `kNotFound` if they have not been computed.
  [[nodiscard]] virtual Result<std::vector<float>> logprobs(SampleId id) const = 0;
  /// Returns whether the log-probabilities of `id` come from recalled activations. If so, they
  /// agree with the behavior log-probabilities by construction. The first sequence of a batch is
  /// always computed.
  [[nodiscard]] virtual bool recalled(SampleId /*id*/) const { return false; }

  /// Returns what the last `optim_step` did. Requires that it has run.
  [[nodiscard]] virtual const UpdateReport& last_update() const = 0;
  /// Moves out the snapshot of the last `save`. Requires that this `save` has completed and that
  /// its snapshot was not taken before.
  [[nodiscard]] virtual Snapshot take_snapshot() = 0;
  /// Moves out what the last `capture` copied. Requires that it has run, and was not taken before.
  [[nodiscard]] virtual TensorMap take_optimizer_state() = 0;

  /// Returns the log-probabilities (T) of the targets of each of `sequences` under `weights`,
  /// computed by the training path. Meant for probes, because it is slow: unless `weights` are the
  /// working weights, it lays them out for the device first.
  /// Errors: as `forward`, except that ids may repeat; those of the device; `kCorruptData` (digest
  /// of `weights`), `kResourceExhausted` if there is too little memory to lay them out, `kInternal`
  /// if a log-probability is not finite; `kUnavailable` while there is work, or while other jobs
  /// hold the pages that it needs.
  [[nodiscard]] virtual Result<std::vector<std::vector<float>>> score(
      const Snapshot& weights, std::span<const TrainSequence> sequences, float temperature) = 0;

  /// Cancels all work and replaces the weights and the optimizer state with those of a commit. If
  /// they are invalid, nothing changes. A snapshot holds tensors without their configuration, so
  /// the caller has to load it into a job with the same adapter options, such as alpha.
  /// Errors: `kCorruptData` (digest), `kInvalidArgument` (names, shapes), `kResourceExhausted` if
  /// there is too little memory to lay them out.
  [[nodiscard]] virtual Status load(const Snapshot& snapshot, const TensorMap& optimizer_state) = 0;
};

/// Runs all work of `job`. Errors: those of `TrainingJob::advance`; `kUnavailable` if the job has
/// to wait for others, which this call does not advance.
[[nodiscard]] Status run_to_end(TrainingJob& job);

}  // namespace tidemill::engines
