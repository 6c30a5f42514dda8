// SPDX-License-Identifier: Apache-2.0
// The model code for all families: the forward pass for inference and training, and the backward
// pass, of a Llama, Qwen2 or Qwen3 decoder over a flat ragged batch.
//
// A row's result has the same bits in a decode step, a prefill chunk and a training window, and
// does not depend on the rest of the batch (docs/architecture.md, I7). Three things ensure that:
// every operation treats rows independently (R1 of ops.hpp), keys and values are rounded to the
// type of the cache before attention in every mode, and adapters are never merged. The residual
// stream, norms, softmax and logits are f32.
//
// Legend: T rows of the batch, N training rows among them, R rows that the caller chooses, D hidden
// size, K key/value heads, C head size, V vocabulary.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engines/formats/model_config.hpp"
#include "engines/ops/ops.hpp"
#include "engines/transformer/activations.hpp"
#include "engines/transformer/batch.hpp"
#include "engines/transformer/gradients.hpp"
#include "engines/transformer/kv_cache.hpp"
#include "engines/transformer/model_weights.hpp"
#include "engines/transformer/prefix_gradients.hpp"
#include "engines/transformer/unit_sequence.hpp"

namespace tidemill::engines {

/// Receives the residual stream (T, D): layer 0 is the embeddings, and layer k is the raw output of
/// the k-th decoder layer. The matrix is borrowed until the observer returns.
using HiddenObserver = std::function<void(std::int64_t layer, ConstMatrix hidden)>;

/// Receives the keys and values (T, K*C) of a layer before they are rotated and rounded for the
/// cache. The matrices are borrowed until the observer returns.
using KeyObserver = std::function<void(std::int64_t layer, ConstMatrix key, ConstMatrix value)>;
/// Fills in keys and values that a `KeyObserver` received before: those of the rows of a batch from
/// `first_row` on.
using KeySource =
    std::function<void(std::int64_t layer, std::int64_t first_row, Matrix key, Matrix value)>;

/// Options of a forward pass.
struct ForwardOptions {
  /// Receives the activations of training rows. Required if the batch has training rows.
  Activations* activations = nullptr;
  HiddenObserver observer = nullptr;
  /// Stores the activations of inference rows too. Requires that all rows have the same adapter.
  bool keeps_inference = false;
  KeyObserver key_observer = nullptr;
  /// Maximum number of rows that go through a layer together. 0: all rows of the batch. Changes no
  /// bit. Passes that keep inference rows, or have a key observer, are not divided.
  std::int64_t window_tokens = 0;
};

/// Options for computing log-probabilities from logits.
struct HeadOptions {
  float temperature = 1.0F;  // log_softmax(logits / temperature)
  /// Logits held at once: chunk_rows x V floats. A multiple of `BackendTraits::row_sum_step`.
  /// Changes no bit.
  std::int64_t chunk_rows = 64;
  /// The number of logits per row, roughly, that one unit computes or propagates; 0: all. Changes
  /// no bit.
  std::int64_t unit_features = 0;
};

/// What the head computes from: `targets[t]` is predicted from row t of `hidden` (R, D), or is -1.
/// Everything it names is borrowed.
struct HeadInput {
  const ModelWeights* weights = nullptr;
  const Adapter* adapter = nullptr;  // of all rows, or null
  ConstMatrix hidden;
  std::span<const std::int32_t> targets;
  HeadOptions options;
  /// The numbers of consecutive rows that belong to one sequence each. Read only if the backend's
  /// `row_sum_step` is not 1: chunks then end where sequences do. Empty: all rows belong to one.
  std::span<const std::int64_t> sequence_rows = {};
};

/// Rows whose gradients go through the head at a time. A product holds a rounded copy of their
/// gradients, which are as wide as the vocabulary, so this bounds its memory. It is large enough
/// that transposing the weight costs little.
inline constexpr std::int64_t kHeadGradientRows = 512;

/// The gradients of a loss: d loss / d logprob and d loss / d entropy of each target.
struct TokenGradients {
  std::span<const float> dlogprobs;
  std::span<const float> dentropies;  // empty: zero
  /// Says that the last work on the `Transformer` was that of `start_token_logprobs` with the same
  /// input. If the logits fitted in one chunk, they are then reused.
  bool follows_token_logprobs = false;
};

/// The values of a loss that is evaluated while the head computes log-probabilities. All spans are
/// as long as the targets. Borrowed until the units have run.
struct TokenLossValues {
  std::span<float> logprobs;
  std::span<float> entropies;
  std::span<const float> dlogprobs;   // d loss / d logprob
  std::span<const float> dentropies;  // d loss / d entropy
  /// Sets the gradients of the rows [first, end), whose log-probabilities and entropies are set.
  std::function<void(std::int64_t first, std::int64_t end)> set_gradients;
};

/// Options of a backward pass.
struct BackwardOptions {
  /// Maximum number of rows that go through a layer together: as many whole sequences as fit, or
  /// one window of a longer sequence, cut at multiples of this from its first token. 0: no sequence
  /// is cut. Sums over a sequence that is cut are taken window after window, from the last to the
  /// first, so the same windows give the same bits. Sequences that are not cut have the bits that
  /// they have without windows. A multiple of `BackendTraits::row_sum_step`.
  std::int64_t window_tokens = 0;
  /// The gradients contributed until now to a prefix that is an inference segment of this batch and
  /// a training segment of a later one. May be null if every prefix is trained in the batch that
  /// continues it.
  CarriedPrefix* carried = nullptr;
};

/// Returns the maximum number of rows that go through a layer together in a backward pass over
/// `rows` rows whose longest sequence has `longest` rows.
[[nodiscard]] std::int64_t layer_rows(std::int64_t rows, std::int64_t longest,
                                      const BackwardOptions& options) noexcept;

/// The workspace of a `Transformer` per row, for the three counts of rows that it grows with.
struct WorkspaceRowBytes {
  std::int64_t batch = 0;  // per row of the largest batch
  /// Per row of the largest group that goes through a layer together: `layer_rows` in the backward
  /// pass, `ForwardOptions::window_tokens` in the forward pass.
  std::int64_t group = 0;
  /// Per row of that group or, if longer, of the longest sequence that is cut into windows.
  std::int64_t sequence = 0;
};

/// The largest passes that memory is reserved for.
struct PassLimits {
  WeightUse use = WeightUse::kForward;  // whether there are backward passes
  bool keeps_rows = false;              // whether passes without one keep activations
  std::int64_t rows = 0;                // of a batch
  std::int64_t layer_rows = 0;          // that go through a layer together
  std::int64_t positions = 0;           // the largest position + 1
  // Of training only:
  std::int64_t sequence_rows = 0;  // of the gradients of keys and values of one group
  std::int64_t prefix_rows = 0;    // of all prefixes of a batch
  std::int64_t chunk_rows = 0;     // that go through the head together
  /// The minimum number of rows that go through a layer together, unless a batch has fewer. At most
  /// `layer_rows`, which is for the longest sequence.
  std::int64_t min_layer_rows = 0;
};

/// Runs one model architecture on one device. Weights are passed to each call, so one object with
/// one workspace is enough for rollout, scoring and training.
///
/// Functions named `start_` return their work, divided into units. Their arguments are borrowed
/// until the last unit has run, and until then no other function of the object may be called,
/// except to abandon the work. The returned object must live until the next `Ops::read` or
/// `Ops::synchronize` after its last unit, because operations read its lists.
/// Calls may return before their operations have run. Until the next `Ops::read` or
/// `Ops::synchronize`, weights, adapters and activations must stay unchanged.
/// Memory: a workspace that grows with the rows of the largest batch, group and sequence
/// (`workspace_bytes_per_row`), and rotation tables that grow with the largest position.
/// Threads: one call at a time, on the thread that may use `ops`.
class Transformer {
public:
  struct State;  // transformer_state.hpp

  /// `ops` must outlive it.
  Transformer(ModelConfig config, Ops& ops);
  Transformer(const Transformer&) = delete;
  Transformer& operator=(const Transformer&) = delete;
  ~Transformer();

  [[nodiscard]] const ModelConfig& config() const noexcept;

  /// Reserves the workspace for passes within `limits`, which then allocate nothing. No pass may be
  /// in progress. Without it, or in larger passes, the workspace grows, and running out of memory
  /// ends the program.
  /// Errors: those of `DeviceMemory::allocate`.
  [[nodiscard]] Status reserve(const PassLimits& limits);
  /// Returns the memory that `reserve` takes. Units: bytes.
  [[nodiscard]] static std::int64_t reserved_bytes(const ModelConfig& config,
                                                   const PassLimits& limits);

  /// Runs the decoder over `batch` and stores its keys and values in `cache`. Returns the hidden
  /// states after the final norm (T, D), borrowed until the next call of `forward`. States that no
  /// segment requests are undefined.
  [[nodiscard]] ConstMatrix forward(const ModelWeights& weights, const Batch& batch, KvCache& cache,
                                    const ForwardOptions& options = {});

  /// The same for batches whose hidden states are all requested. With windows, one unit is a
  /// part of a layer (a product or two) over one window; without, a layer over all rows. `hidden`
  /// returns the result.
  [[nodiscard]] std::unique_ptr<UnitSequence> start_forward(const ModelWeights& weights,
                                                            const Batch& batch, KvCache& cache,
                                                            const ForwardOptions& options);
  /// Returns the result of the last forward pass or recall.
  [[nodiscard]] ConstMatrix hidden() const noexcept;

  /// Restores the state after `forward` without computing its products, in units of a layer over
  /// `window_tokens` rows, or over all rows if it is 0. `activations` must already hold those of
  /// the training rows. `keys` must provide the keys and values of all rows, for every layer from
  /// `activations.first_layer()` on. Both must come from forward passes with the same weights.
  /// Unlike after `forward`, the hidden states of inference rows and the keys and values of lower
  /// layers are undefined.
  [[nodiscard]] std::unique_ptr<UnitSequence> start_recall(const ModelWeights& weights,
                                                           const Batch& batch, KvCache& cache,
                                                           Activations& activations, KeySource keys,
                                                           std::int64_t window_tokens);

  /// Computes the logits (R, V) of hidden states (R, D). `runs` are the rows with an adapter, which
  /// may change the head.
  void logits(const ModelWeights& weights, std::span<const AdapterRun> runs, ConstMatrix hidden,
              Matrix logits);

  /// Computes logprobs[t], the log-probability of targets[t] given hidden[t] (the state of the
  /// token before it), and entropies[t], the entropy of that distribution in nats. Empty
  /// `entropies` are skipped. Both are 0 if the target is -1; rows without a target cost nothing.
  /// One unit is a part of the logits of `HeadOptions::chunk_rows` rows. The results are set by the
  /// last unit.
  [[nodiscard]] std::unique_ptr<UnitSequence> start_token_logprobs(const HeadInput& input,
                                                                   std::span<float> logprobs,
                                                                   std::span<float> entropies);

  /// Propagates the gradient of a loss on the results of `start_token_logprobs` to the hidden
  /// states. Overwrites dhidden (N, D), and adds the gradient of the head to `gradients` if the
  /// head is trained. Recomputes the logits chunk by chunk unless it can reuse them. Spans are as
  /// long as the targets. Requires weights prepared for backward. One unit is a part of a product
  /// over a chunk of rows.
  /// `upstream` is borrowed only until the function returns.
  [[nodiscard]] std::unique_ptr<UnitSequence> start_token_logprobs_backward(
      const HeadInput& input, const TokenGradients& upstream, Matrix dhidden, Gradients& gradients);

  /// Does the work of the two functions above, but computes the logits once: for each chunk of
  /// rows, computes the log-probabilities, has the loss set its gradients, and propagates them. One
  /// unit is a part of a product over a chunk of rows, or the loss of a chunk.
  [[nodiscard]] std::unique_ptr<UnitSequence> start_token_loss(const HeadInput& input,
                                                               TokenLossValues values,
                                                               Matrix dhidden,
                                                               Gradients& gradients);

  /// Adds the gradients of the batch's training rows to `gradients`, given `dhidden` (N, D), the
  /// gradient of the normalized hidden states of those rows. `batch`, its pages in `cache` and
  /// `activations` must be those of the forward pass. Consumes `activations`, but not `dhidden`.
  /// Requires weights (and the trained adapter) prepared for backward. If `gradients` belong to an
  /// adapter, the training segments must use that adapter.
  /// One unit is a part of a layer (a product or two) over one window of rows, or computes again
  /// what the pass over that window needs of such a part.
  [[nodiscard]] std::unique_ptr<UnitSequence> start_backward(
      const ModelWeights& weights, const Batch& batch, const KvCache& cache,
      Activations& activations, ConstMatrix dhidden, Gradients& gradients,
      const BackwardOptions& options);

  /// Returns the current size of the workspace without the rotation tables. Units: bytes.
  [[nodiscard]] std::int64_t workspace_bytes() const noexcept;
  /// Returns the workspace per row without that of the head, for memory estimates.
  [[nodiscard]] static WorkspaceRowBytes workspace_bytes_per_row(const ModelConfig& config,
                                                                 WeightUse use) noexcept;
  /// Returns the additional workspace of the log-probabilities and their backward pass with
  /// `chunk_rows` rows at a time after a batch of `rows` rows of which `group` go through a layer
  /// together. It is 0 if the chunks fit in the buffers of that batch's layers. Units: bytes.
  [[nodiscard]] static std::int64_t head_bytes(const ModelConfig& config, std::int64_t rows,
                                               std::int64_t group,
                                               std::int64_t chunk_rows) noexcept;

  /// The rows of a pass, and those of its largest group.
  struct PassRows {
    std::int64_t rows = 0;
    std::int64_t layer_rows = 0;
  };
  /// Returns training passes within `limits`, one of which needs the most memory of all. Most
  /// buffers grow with the rows, but the head has its own only if groups are small (`head_bytes`).
  [[nodiscard]] static std::vector<PassRows> largest_passes(const ModelConfig& config,
                                                            const PassLimits& limits);

private:
  std::unique_ptr<State> state_;
};

}  // namespace tidemill::engines
