// SPDX-License-Identifier: Apache-2.0
// The decoder layers of one forward pass, and the parts of them that a backward pass recomputes.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>

#include "engines/transformer/adapter_rows.hpp"
#include "engines/transformer/transformer_state.hpp"

namespace tidemill::engines {

/// Says which rows of a batch a pass computes, and of which it keeps activations.
struct PassRows {
  std::int64_t first = 0;  // among all rows of the batch
  std::int64_t count = 0;
  std::int64_t num_kept = 0;    // counted from the end of the pass's rows
  std::int64_t first_kept = 0;  // among all rows of the batch that are kept
  std::int64_t total_kept = 0;  // in the whole batch
};

/// The parts of a decoder layer, in order. Between two parts of the same rows, no other rows may go
/// through the buffers of the pass.
enum class LayerPart : std::uint8_t {
  kProjections,  // the input norm; queries, keys and values
  kAttention,    // attention and its output layer
  kGate,         // the norm after attention; gate
  kUp,
  kDown,  // the activation and the down layer
};
inline constexpr std::array kLayerParts = {LayerPart::kProjections, LayerPart::kAttention,
                                           LayerPart::kGate, LayerPart::kUp, LayerPart::kDown};

/// Runs one pass over consecutive rows of a batch. Activations of its last rows may be kept for
/// training. Everything it borrows must outlive it. The residual stream and the result are the
/// pass's rows of `ForwardBuffers::residual` (T, D), which the caller sets, and of
/// `ForwardBuffers::hidden` (T, D), which the caller shapes; T counts all rows of the batch.
class ForwardPass {
public:
  /// `plan` and `lists` describe the pass's rows alone. `activations` receive those of the rows
  /// that are kept. Null: none are kept.
  ForwardPass(Transformer::State& state, const ModelWeights& weights, const BatchPlan& plan,
              const PlanLists& lists, const KvCache& cache, Activations* activations,
              const PassRows& rows, KeyObserver key_observer = {});

  /// Runs decoder layer `index`.
  void layer(std::int64_t index);
  /// Runs one part of decoder layer `index`. The parts give the bits of `layer`, which shares more
  /// work between products.
  void layer_part(std::int64_t index, LayerPart part);
  /// The two steps of a layer if nothing is kept. `append_keys` stores the keys and values of all
  /// rows in the cache. `finish_layer` computes the rest; it may belong to another pass, over only
  /// those rows whose results are needed.
  void append_keys(std::int64_t index);
  void finish_layer(std::int64_t index);
  /// Computes the normalized hidden states in `ForwardBuffers::hidden`.
  void final_norm();

  /// Return the parts of a layer whose activations the policy does not keep: from the first up to
  /// `kUp`. Nothing is recomputed under `Recompute::kNone`.
  [[nodiscard]] static LayerPart first_recomputed(Recompute recompute) noexcept {
    return recompute == Recompute::kLayer ? LayerPart::kProjections : LayerPart::kGate;
  }
  /// Recomputes the activations of such a part of layer `index`. The first part starts from
  /// `Activations::start` and overwrites the residual stream, which it shapes itself. Requires that
  /// all rows are training rows.
  void recompute(std::int64_t index, LayerPart part);

private:
  // Says whether keys and values are stored in the cache, or are there already.
  enum class Append { kYes, kNo };

  // Says whether queries are computed with keys and values, from the same rows.
  enum class Query { kWithKeys, kApart };
  // A linear layer and its result.
  struct LinearResult {
    LinearKind kind;
    Matrix y;
  };

  [[nodiscard]] AttentionActivations* kept_attention(std::int64_t index) const;
  [[nodiscard]] MlpActivations* kept_mlp(std::int64_t index) const;
  void keys_and_values(std::int64_t index, AttentionActivations* kept, Append append, Query query);
  void attend(std::int64_t index, AttentionActivations* kept, Query query);
  void mlp_norm(std::int64_t index, MlpActivations* kept);
  void gate_and_up(std::int64_t index, MlpActivations* kept);
  void gate(std::int64_t index, MlpActivations* kept);
  void up(std::int64_t index, MlpActivations* kept);
  void down(std::int64_t index);
  void linear(std::int64_t index, LinearKind kind, ConstMatrix x, Store store, Matrix y);
  // Overwrites the results of layers of the same input, with the bits of separate calls of
  // `linear`.
  void linears(std::int64_t index, ConstMatrix x, std::initializer_list<LinearResult> results);
  [[nodiscard]] KeptLowRank kept_low_rank(std::int64_t index, LinearKind kind);
  void layer_norm(std::int64_t index, NormKind kind, ConstMatrix x, Matrix out,
                  DeviceMatrix* kept_rstd);
  void head_norm(std::int64_t index, NormKind kind, DeviceMatrix& x, DeviceMatrix* kept_rstd);
  template <class Find>
  void norm(ConstMatrix x, ConstVector gain, const Find& find, Matrix out, DeviceMatrix* kept_rstd);
  [[nodiscard]] Vector rstd_buffer(const DeviceMatrix* kept, std::int64_t per_row);
  [[nodiscard]] bool keeps(std::int64_t index) const;
  // Returns the destination of (T, F) results whose last rows are to be kept in `kept`: `kept`
  // itself if it keeps all rows unrounded, otherwise `buffer`.
  [[nodiscard]] Matrix result_target(DeviceMatrix& buffer, DeviceMatrix* kept) const;
  // Copies the rows to keep from `source`, unless they were written to `target` directly.
  void keep(ConstMatrix source, DeviceMatrix& target);

  const ModelConfig& config_;
  float epsilon_;
  Ops& ops_;
  ForwardBuffers& b_;
  const ModelWeights& weights_;
  const BatchPlan& plan_;
  PlanLists lists_;
  RopeTables rope_;
  const KvCache& cache_;
  Activations* activations_;  // null: nothing is kept
  Matrix gate_;               // of the MLP being computed
  Matrix up_;
  PassRows rows_;
  Matrix residual_;  // (rows_.count, D)
  KeyObserver key_observer_;
};

}  // namespace tidemill::engines
