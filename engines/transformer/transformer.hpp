// SPDX-License-Identifier: Apache-2.0
// The one model code: forward for inference and training, and backward, of a Llama, Qwen2 or Qwen3
// decoder over a flat ragged batch.
//
// A row's result has the same bits in a decode step, a prefill chunk and a training window, and
// whatever else is in the batch (DESIGN I7): every operation treats rows alone (R1 of ops.hpp),
// keys and values are rounded to the cache's type before attention in every mode, and adapters are
// never merged. Residual, norms, softmax and logits are f32.
//
// Legend: T rows of the batch, N its training rows, D hidden size, V vocabulary.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "engines/formats/model_config.hpp"
#include "engines/ops/ops.hpp"
#include "engines/transformer/activations.hpp"
#include "engines/transformer/batch.hpp"
#include "engines/transformer/gradients.hpp"
#include "engines/transformer/kv_cache.hpp"
#include "engines/transformer/model_weights.hpp"
#include "engines/transformer/prefix_gradients.hpp"

namespace tidemill::engines {

/// Sees the residual stream (T, D): layer 0 is the embeddings, layer k the raw output of the k-th
/// decoder layer. Borrowed until return.
using HiddenObserver = std::function<void(std::int64_t layer, ConstMatrix hidden)>;

/// Sees the keys and values (T, K*C) of a layer before they are rotated and rounded for the cache.
/// Borrowed until return.
using KeyObserver = std::function<void(std::int64_t layer, ConstMatrix key, ConstMatrix value)>;
/// Fills keys and values as a `KeyObserver` has seen them.
using KeySource = std::function<void(std::int64_t layer, Matrix key, Matrix value)>;

/// What a forward pass does beside its result.
struct ForwardOptions {
  /// Required when the batch has training rows, whose activations it receives.
  Activations* activations = nullptr;
  HiddenObserver observer = nullptr;
  /// Activations receive those of inference rows too. Requires that all rows have the same adapter.
  bool keeps_inference = false;
  KeyObserver key_observer = nullptr;
};

/// How log-probabilities are taken from logits.
struct HeadOptions {
  float temperature = 1.0F;      // log_softmax(logits / temperature)
  std::int64_t chunk_rows = 64;  // logits held at once: chunk_rows x V floats; changes no bit
};

/// Rows whose gradient goes through the head at once: a product holds a copy of them rounded, as
/// wide as the vocabulary. Enough that turning the weight round costs little.
inline constexpr std::int64_t kHeadGradientRows = 512;

/// What a loss sends back: d loss / d logprob and d loss / d entropy of each target.
struct TokenGradients {
  std::span<const float> dlogprobs;
  std::span<const float> dentropies;  // empty: zero
  /// The call follows `token_logprobs` of the same arguments, with no other call in between: logits
  /// that fitted one chunk are then still there.
  bool follows = false;
};

/// How gradients are taken.
struct BackwardOptions {
  /// Rows that go through a layer together: as many whole sequences as fit, or one window of a
  /// longer one, cut at multiples of this from its first token. 0: no sequence is cut. Sums over
  /// a sequence that is cut are taken window after window, from the last to the first: its
  /// gradients have the same bits for the same windows, and those of whole sequences otherwise.
  std::int64_t window_tokens = 0;
  /// What a prefix that is an inference segment of the batch, and a training segment of a later
  /// one, has got until then; may be null when all prefixes are trained where they are continued.
  CarriedPrefix* carried = nullptr;
};

/// Returns the most rows that go through a layer together in a backward pass over `rows` rows whose
/// longest sequence has `longest`.
[[nodiscard]] std::int64_t group_rows(std::int64_t rows, std::int64_t longest,
                                      const BackwardOptions& options) noexcept;

/// The workspace of a `Transformer` for one row, by which rows take it.
struct WorkspaceRowBytes {
  std::int64_t batch = 0;  // of the largest batch
  /// Of the largest group that `Transformer::backward` takes through a layer together
  /// (`group_rows`).
  std::int64_t group = 0;
  /// Of that group or, if longer, of the longest sequence that is cut in windows.
  std::int64_t sequence = 0;
};

/// Runs one model architecture on one device. Weights are passed to each call, so that one object,
/// with one workspace, serves rollout, scoring and training.
///
/// Memory: a workspace that grows with the rows of the largest batch, group and sequence
/// (`workspace_bytes_per_row`) and rotation tables that grow with the largest position.
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

  /// Runs the decoder over `batch`, storing its keys and values in `cache`. Returns the hidden
  /// states after the final norm (T, D), borrowed until the next call of `forward`; those that no
  /// segment wants are undefined.
  [[nodiscard]] ConstMatrix forward(const ModelWeights& weights, const Batch& batch, KvCache& cache,
                                    const ForwardOptions& options = {});

  /// Does what `forward` would, without its products: `activations` hold those of the training rows
  /// already, and `keys` gives the keys and values of all rows from their first layer on, all of
  /// it from forwards with the same weights. What is left undefined beside: hidden states of
  /// inference rows, and keys and values of lower layers.
  [[nodiscard]] ConstMatrix recall(const ModelWeights& weights, const Batch& batch, KvCache& cache,
                                   Activations& activations, const KeySource& keys);

  /// logits (R, V) of hidden states (R, D). The caller picks the rows it needs; `runs` are those
  /// with an adapter, which may change the head.
  void logits(const ModelWeights& weights, std::span<const AdapterRun> runs, ConstMatrix hidden,
              Matrix logits);

  /// logprobs[t] = log-probability of targets[t] given hidden[t] (the state of the token before
  /// it), entropies[t] = entropy of that distribution in nats (skipped when empty); both 0 where
  /// the target is -1. Rows without a target cost nothing. All rows are of one `adapter` or none.
  void token_logprobs(const ModelWeights& weights, const Adapter* adapter, ConstMatrix hidden,
                      std::span<const std::int32_t> targets, const HeadOptions& options,
                      std::span<float> logprobs, std::span<float> entropies);

  /// Continues the gradient of a loss on `token_logprobs` to the hidden states: dhidden (N, D) is
  /// overwritten, the head's gradient is added to `gradients` when it is trained. Computes the
  /// logits again, chunk by chunk, unless they are still there. Spans are as long as `targets`.
  /// Requires weights prepared for backward.
  void token_logprobs_backward(const ModelWeights& weights, const Adapter* adapter,
                               ConstMatrix hidden, std::span<const std::int32_t> targets,
                               const HeadOptions& options, const TokenGradients& upstream,
                               Matrix dhidden, Gradients& gradients);

  /// Adds the gradients of the batch's training rows to `gradients`, for `dhidden` (N, D), the
  /// gradient of the normalised hidden states of those rows. `batch`, its pages in `cache` and
  /// `activations` must be those of the forward; `activations` are used up, `dhidden` is not.
  /// Requires weights (and the trained adapter) prepared for backward. When `gradients` are an
  /// adapter's, it must be the training segments' adapter.
  void backward(const ModelWeights& weights, const Batch& batch, const KvCache& cache,
                Activations& activations, ConstMatrix dhidden, Gradients& gradients,
                const BackwardOptions& options = {});

  /// Returns the memory of its workspace now, rotation tables apart.
  [[nodiscard]] std::int64_t workspace_bytes() const noexcept;
  /// Returns the workspace that rows take, for memory plans; that of the head comes on top.
  [[nodiscard]] static WorkspaceRowBytes workspace_bytes_per_row(const ModelConfig& config,
                                                                 WeightUse use) noexcept;
  /// Returns what `token_logprobs` and its backward take on top for `chunk_rows` rows at a time,
  /// after a batch of `rows`: nothing where the logits fit what its MLP was computed in.
  [[nodiscard]] static std::int64_t head_bytes(const ModelConfig& config, std::int64_t rows,
                                               std::int64_t chunk_rows) noexcept;

private:
  std::unique_ptr<State> state_;
};

}  // namespace tidemill::engines
