// SPDX-License-Identifier: Apache-2.0
// The decoder layers of one forward pass, and the parts of them that a backward pass runs again.
#pragma once

#include <cstdint>
#include <span>

#include "engines/transformer/transformer_state.hpp"

namespace tidemill::engines {

/// One pass over the rows of one plan, of which the last may be kept for training. All it borrows
/// must outlive it. The residual stream is `ForwardBuffers::residual` (T, D), set by the caller.
class ForwardPass {
public:
  /// `activations` receive what is kept of the last `num_kept` rows; null: nothing is.
  ForwardPass(Transformer::State& state, const ModelWeights& weights, const BatchPlan& plan,
              const KvCache& cache, Activations* activations, std::int64_t num_kept,
              KeyObserver key_observer = {});

  void layer(std::int64_t index);
  /// The two parts of a layer when nothing is kept: keys and values of all rows go to the cache,
  /// and then all else is done, by a pass over as many of the rows as anybody needs.
  void append_keys(std::int64_t index);
  void finish_layer(std::int64_t index);
  /// Leaves the normalised hidden states in `ForwardBuffers::hidden`.
  void final_norm();

  /// Fills, of rows that are all training rows, the halves of layer `index` that its policy does
  /// not keep, from the rows it starts from.
  void recompute(std::int64_t index);

private:
  // Whether keys and values go to the cache, or are there already.
  enum class Append { kYes, kNo };

  void attention_half(std::int64_t index, AttentionActivations* kept, Append append);
  void keys_and_values(std::int64_t index, AttentionActivations* kept, Append append);
  void attend(std::int64_t index, AttentionActivations* kept);
  void mlp_input(std::int64_t index, MlpActivations* kept);
  void mlp_output(std::int64_t index);
  void linear(std::int64_t index, LinearKind kind, ConstMatrix x, Store store, Matrix y);
  void layer_norm(std::int64_t index, NormKind kind, ConstMatrix x, Matrix out,
                  OwnedMatrix* kept_rstd);
  void head_norm(std::int64_t index, NormKind kind, OwnedMatrix& x, OwnedMatrix* kept_rstd);
  template <class Find>
  void norm(ConstMatrix x, std::span<const float> gain, const Find& find, Matrix out,
            OwnedMatrix* kept_rstd);
  [[nodiscard]] std::span<float> rstd_buffer(const OwnedMatrix* wanted, std::int64_t per_row);
  [[nodiscard]] bool keeps(std::int64_t index) const;
  // Where (T, F) results go of which `kept` keeps the last rows: to itself, if these are all rows
  // and are kept as they are, or to `buffer`.
  [[nodiscard]] Matrix place(OwnedMatrix& buffer, KeptRows* kept) const;
  // Copies the rows that are kept, unless they are there.
  void keep(ConstMatrix source, KeptRows& target);
  void keep(const OwnedMatrix& source, OwnedMatrix& target) const;

  const ModelConfig& config_;
  float epsilon_;
  Ops& ops_;
  ForwardBuffers& b_;
  const ModelWeights& weights_;
  const BatchPlan& plan_;
  RopeTables rope_;
  const KvCache& cache_;
  Activations* activations_;  // null: nothing is kept
  Matrix gate_;               // of the MLP that is being computed
  Matrix up_;
  std::int64_t num_rows_;
  std::int64_t num_kept_;
  KeyObserver key_observer_;
};

}  // namespace tidemill::engines
