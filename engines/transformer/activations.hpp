// SPDX-License-Identifier: Apache-2.0
// The activations that a forward pass keeps for the backward pass.
//
// To give exact gradients without computing a product twice, a layer must keep at least, for each
// training row: its input and the residual after attention (D each) with their rstd, the query
// after rotation (H*C), the attention output (H*C) and its log denominators (H), and gate and up (F
// each). A model with q/k norms keeps query and key before the norm instead of the rotated query.
// Low-rank adapters keep their scaled A x (rank each). Keys and values are in the pages of the
// cache. Norm outputs and SwiGLU are always recomputed, bit for bit, by the same operations.
//
// A policy (`Recompute`) trades products for memory. The backward pass reads the same bits under
// every policy: recomputation starts from rows that are kept in float32, and recomputed activations
// are rounded to the same type as kept ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/tensor/dtype.hpp"
#include "engines/formats/model_config.hpp"
#include "engines/peft/adapter_spec.hpp"
#include "engines/transformer/device_matrix.hpp"
#include "engines/transformer/model_layout.hpp"
#include "engines/transformer/pass_memory.hpp"
#include "engines/transformer/recompute.hpp"

namespace tidemill::engines {

/// Options for keeping activations.
struct KeepOptions {
  Recompute recompute = Recompute::kNone;
  /// kF32 or kBF16. With kBF16, activations are rounded unless recomputation starts from them.
  DType dtype = DType::kF32;
  /// All layers share the memory of one, so that a layer's activations must be saved (`save_layer`)
  /// before the next layer runs. Requires Recompute::kNone.
  bool one_layer = false;

  /// Returns the options for products computed in `compute`: activations are rounded if `compute`
  /// is not kF32.
  [[nodiscard]] static KeepOptions for_compute(DType compute, Recompute recompute) noexcept {
    return {recompute, compute == DType::kF32 ? DType::kF32 : DType::kBF16};
  }
};

/// Activations of the attention half of one layer.
struct AttentionActivations {
  AttentionActivations(DeviceMemory& memory, DType dtype)
      : input(memory, dtype),
        input_rstd(memory),
        query(memory, dtype),
        query_rstd(memory),
        key(memory, dtype),
        key_rstd(memory),
        attention(memory, dtype),
        lse(memory) {}

  DeviceMatrix input;       // (T, D)
  DeviceMatrix input_rstd;  // (T, 1)
  DeviceMatrix query;       // (T, H*C): rotated or, with q/k norms, before its norm
  DeviceMatrix query_rstd;  // (T, H), with q/k norms only
  DeviceMatrix key;         // (T, K*C) before its norm, with q/k norms only
  DeviceMatrix key_rstd;    // (T, K), with q/k norms only
  DeviceMatrix attention;   // (T, H*C)
  DeviceMatrix lse;         // (T, H)

  [[nodiscard]] std::int64_t size_bytes() const noexcept;
};

/// Activations of the MLP half of one layer.
struct MlpActivations {
  MlpActivations(DeviceMemory& memory, DType dtype)
      : residual(memory, dtype), residual_rstd(memory), gate(memory, dtype), up(memory, dtype) {}

  DeviceMatrix residual;       // (T, D)
  DeviceMatrix residual_rstd;  // (T, 1)
  DeviceMatrix gate;           // (T, F)
  DeviceMatrix up;             // (T, F)

  [[nodiscard]] std::int64_t size_bytes() const noexcept;
};

/// Records of equal size in device memory, each of which holds the parts of one row.
struct RecordPool {
  DeviceAddress data;
  std::int64_t num_records = 0;
  std::int64_t record_bytes = 0;  // a multiple of 4

  /// Returns the part of every record that holds `cols` elements from `first_byte` on.
  [[nodiscard]] Matrix part(std::int64_t first_byte, std::int64_t cols,
                            DType dtype) const noexcept {
    return {data.offset(first_byte), num_records, cols, record_bytes / element_bytes(dtype), dtype};
  }
};

/// Holds the activations of a batch. `Transformer::forward` fills them and one `backward` consumes
/// them. The object is reused from batch to batch.
class Activations {
public:
  /// Keeps what gradients down to layer `first_layer` (`Gradients::first_layer()`) need.
  /// `memory` must outlive the object.
  Activations(const ModelConfig& config, std::int64_t first_layer, DeviceMemory& memory,
              const KeepOptions& options = {});

  /// Reserves memory for passes that keep up to `rows` rows with the adapter of `spec`. Such passes
  /// allocate nothing. The object must hold no activations.
  /// Errors: those of `DeviceMemory::allocate`.
  [[nodiscard]] Status reserve(std::int64_t rows, const AdapterSpec& spec = {});
  /// Returns the memory that `reserve` takes. Units: bytes.
  [[nodiscard]] static std::int64_t reserved_bytes(const ModelConfig& config,
                                                   std::int64_t first_layer,
                                                   const KeepOptions& options, std::int64_t rows,
                                                   const AdapterSpec& spec);
  /// Begins a pass that keeps `rows` rows: divides the reserved memory, if any, among the matrices.
  void begin_pass(std::int64_t rows);

  [[nodiscard]] std::int64_t first_layer() const noexcept { return first_layer_; }
  [[nodiscard]] Recompute recompute() const noexcept { return options_.recompute; }

  /// Return the activations that the backward pass reads for a layer. If the policy recomputes
  /// them, all layers share one object.
  [[nodiscard]] AttentionActivations& attention(std::int64_t index);
  [[nodiscard]] MlpActivations& mlp(std::int64_t index);
  /// Returns the rows in float32 that recomputation starts from: the layer's input (kLayer) or its
  /// residual after attention (kCheap). Requires one of these policies.
  [[nodiscard]] DeviceMatrix& start(std::int64_t index);
  /// Returns the scaled A x (T, R) of an adapter that only adds a low-rank product. It is always
  /// kept: it is small, and it was computed from rows that had not been rounded.
  [[nodiscard]] DeviceMatrix& low_rank(std::int64_t index, LinearKind kind);
  /// Return the last layer's raw output (T, D) and the final norm's rstd (T, 1).
  [[nodiscard]] DeviceMatrix& final_input() noexcept { return final_input_; }
  [[nodiscard]] DeviceMatrix& final_rstd() noexcept { return final_rstd_; }

  /// Copies what it holds of layer `index` to records: row i to record `records[i]`. Skips rows
  /// whose record is -1. The part of a record begins `first_byte` bytes after its start in `pool`.
  /// Returns the bytes of that part. Requires the policy kNone, and that the layer has just run.
  std::int64_t save_layer(std::int64_t index, const RecordPool& pool, std::int64_t first_byte,
                          IndexList records, Ops& ops);
  /// The same for what the final norm reads, after the pass.
  std::int64_t save_final(const RecordPool& pool, std::int64_t first_byte, IndexList records,
                          Ops& ops) const;
  /// Restores saved rows, in any order, as if a forward pass had computed them. The parts of a
  /// record begin `first_byte` bytes after its start: the layers in order, then the final norm.
  /// Requires the policy kNone and an earlier forward pass with the same adapter.
  void load_rows(const RecordPool& pool, std::int64_t first_byte, IndexList records, Ops& ops);

  /// Returns the memory that it currently owns. Units: bytes.
  [[nodiscard]] std::int64_t size_bytes() const noexcept;
  /// Returns the memory that one training row takes with the adapter of `spec`. Units: bytes.
  [[nodiscard]] static std::int64_t bytes_per_row(const ModelConfig& config,
                                                  std::int64_t first_layer,
                                                  const KeepOptions& options = {},
                                                  const AdapterSpec& spec = {});

private:
  // Returns the index of layer `index` in the vectors below.
  [[nodiscard]] std::size_t storage_index(std::int64_t index) const;
  template <class F>
  void for_each_part(std::int64_t index, F f);
  // Sets `ranks_`. Returns the memory of `rows` rows.
  [[nodiscard]] std::int64_t bytes_for(std::int64_t rows, const AdapterSpec& spec);
  void lend(AttentionActivations& half, std::int64_t rows);
  void lend(MlpActivations& half, std::int64_t rows);
  void lend_all(std::int64_t rows);

  ModelConfig config_;
  KeepOptions options_;
  std::int64_t first_layer_;
  // One entry per layer from first_layer_ on, or a single entry that all layers share. The number
  // of layers is that of `low_rank_`, unless they share one.
  std::vector<AttentionActivations> attention_;
  std::vector<MlpActivations> mlp_;
  std::vector<DeviceMatrix> start_;
  std::vector<PerLinear<DeviceMatrix>> low_rank_;
  std::vector<PerLinear<std::int64_t>> ranks_;  // of `low_rank_`; set by `reserve`
  DeviceMatrix final_input_;
  DeviceMatrix final_rstd_;
  PassMemory memory_;
};

}  // namespace tidemill::engines
