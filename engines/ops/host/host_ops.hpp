// SPDX-License-Identifier: Apache-2.0
// The operations on host memory: what a backend whose device is the processor implements.
//
// `host_backend.hpp` adapts this interface to `engines::Ops` (engines/ops/ops.hpp): it owns the
// memory, and turns device addresses into pointers and prepared passes into spans. Each function
// has the contract of the operation of the same name in ops.hpp, including rules R1 to R3.
//
// Legend: as in ops.hpp.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "base/result.hpp"
#include "engines/ops/host/host_matrix.hpp"
#include "engines/ops/op_types.hpp"
#include "engines/optimizer/adamw.hpp"
#include "engines/sampling/mass_kernels.hpp"

namespace tidemill::engines::host {

/// One linear layer of a `linear_group`, or a slice of its output features: those in
/// [first_output, first_output + P).
struct LinearTerm {
  const PreparedWeight* weight = nullptr;  // (O, I)
  std::span<const float> bias;             // (P), or empty
  Matrix y;                                // (T, P)
  std::int64_t first_output = 0;           // a multiple of `kFeatureStep`
};

/// Describes a low-rank product on consecutive rows of a batch: scale * (B (A x) + c). A and B are
/// prepared in f32.
struct LowRankTerm {
  std::int64_t first_row = 0;
  std::int64_t num_rows = 0;
  const PreparedWeight* a = nullptr;  // (R, I)
  const PreparedWeight* b = nullptr;  // (O, R)
  float scale = 0.0F;
  std::span<const float> scaled_c;  // (O), scale * c; may be empty
};

/// Points to one layer of a paged key/value cache.
struct KvLayer {
  std::byte* data = nullptr;
};

/// Accumulates the gradients of one sequence's keys and values. Both are (positions, K*C), and row
/// p belongs to position p. The caller owns the memory.
struct KvGradient {
  Matrix dk;
  Matrix dv;
};

/// Holds rotation angles, as `engines::RopeTables` does.
struct RopeTables {
  ConstMatrix cosine;
  ConstMatrix sine;
};

/// Runs the operations on the processor.
///
/// `TIDEMILL_CHECK` checks all shapes: model code is the only caller, so a mismatch is a programmer
/// error. Outputs must not alias inputs unless an operation says so.
/// Threads: one call at a time per object. An object uses its own workers inside a call.
class Ops {
public:
  Ops() = default;
  Ops(const Ops&) = delete;
  Ops& operator=(const Ops&) = delete;
  virtual ~Ops() = default;

  /// Returns the device description that a run prints.
  [[nodiscard]] virtual std::string_view description() const noexcept = 0;
  /// Returns the traits of a backend that runs these operations.
  [[nodiscard]] virtual BackendTraits traits() const noexcept { return {}; }

  /// A part of a loop: its number, and the range of its items.
  using LoopBody = std::function<void(std::int64_t part, std::int64_t begin, std::int64_t end)>;
  /// Calls `body` for disjoint ranges that cover [0, count), in parallel, and returns when all
  /// calls are done. `item_cost` is the estimated cost of one item. Part numbers are less than
  /// `max_parts()`. Units: processor cycles.
  virtual void parallel_for(std::int64_t count, std::int64_t item_cost, const LoopBody& body) = 0;
  [[nodiscard]] virtual std::int64_t max_parts() const noexcept = 0;

  // -- linear layers ---------------------------------------------------------------------------

  /// Lays `weight` out for this backend.
  [[nodiscard]] virtual Result<std::unique_ptr<PreparedWeight>> prepare_weight(
      const WeightView& weight, DType compute, WeightUse use) = 0;

  /// Does the same as `prepare_weight`, but reuses the memory of `old` if the backend can.
  [[nodiscard]] Result<std::unique_ptr<PreparedWeight>> replace_weight(
      std::unique_ptr<PreparedWeight> old, const WeightView& weight, DType compute, WeightUse use) {
    return replace_weight(std::move(old), weight, {0, weight.out_features}, compute, use);
  }
  /// Does the same with `rows` alone, and keeps the rows that `old` has before them. This version
  /// prepares all rows each time.
  [[nodiscard]] virtual Result<std::unique_ptr<PreparedWeight>> replace_weight(
      std::unique_ptr<PreparedWeight> old, const WeightView& weight, WeightRows /*rows*/,
      DType compute, WeightUse use) {
    old.reset();  // freed first: holding both would double peak memory
    return prepare_weight(weight, compute, use);
  }

  /// Computes y (T, O) = or += x (T, I) W^T + bias (O).
  void linear(ConstMatrix x, const PreparedWeight& weight, std::span<const float> bias, Store store,
              Matrix y) {
    const LinearTerm term{&weight, bias, y};
    linear_group(x, {&term, 1}, store);
  }

  /// Computes y = or += x (T, I) W^T + bias for each of `terms`, with the bits of `linear` for
  /// whole layers.
  virtual void linear_group(ConstMatrix x, std::span<const LinearTerm> terms, Store store) = 0;

  /// Computes dx (T, I) = or += dy (T, O) W. Requires a weight prepared for backward.
  void linear_backward_input(ConstMatrix dy, const PreparedWeight& weight, Store store, Matrix dx) {
    linear_backward_input(dy, weight, 0, store, dx);
  }
  /// The same for the input features from `first_input` on, a multiple of `kFeatureStep`.
  virtual void linear_backward_input(ConstMatrix dy, const PreparedWeight& weight,
                                     std::int64_t first_input, Store store, Matrix dx) = 0;

  /// Computes dw (O, I) += dy^T (O, T) x (T, I), row by row (R2).
  virtual void linear_backward_weight(ConstMatrix dy, ConstMatrix x, Matrix dw) = 0;

  /// Adds the rows of dy (T, O) to dbias (O), row by row (R2).
  virtual void bias_backward(ConstMatrix dy, std::span<float> dbias) = 0;

  /// Adds to y (T, O) the product of each term with its rows of x (T, I), with the same bits as
  /// three calls.
  virtual void add_low_rank(ConstMatrix x, std::span<const LowRankTerm> terms, Matrix y) = 0;

  // -- rows ------------------------------------------------------------------------------------

  /// Copies row ids[t] of the table (V, D) to row t of out (T, D), widened exactly.
  virtual void embed(std::span<const std::int32_t> ids, const WeightView& table, Matrix out) = 0;
  /// Does the same with the rows of a weight that was prepared for products in kBlockI8.
  virtual void embed_tied(std::span<const std::int32_t> ids, const PreparedWeight& weight,
                          Matrix out) = 0;

  /// Adds dout[t] to row ids[t] of dtable (V, D), row by row (R2).
  virtual void embed_backward(std::span<const std::int32_t> ids, ConstMatrix dout,
                              Matrix dtable) = 0;

  /// Computes out[t] = x[t] * rstd[t] * gain, with rstd[t] = 1 / sqrt(mean(x[t]^2) + eps).
  virtual void rms_norm(ConstMatrix x, std::span<const float> gain, float eps, Matrix out,
                        std::span<float> rstd) = 0;

  /// Computes dx (T, D) = or += the gradient of the input, and adds the gradient of the gain to
  /// dgain (D), row by row (R2).
  virtual void rms_norm_backward(ConstMatrix dout, ConstMatrix x, std::span<const float> gain,
                                 std::span<const float> rstd, Store store, Matrix dx,
                                 std::span<float> dgain) = 0;

  /// Rotates x (T, n*C) in place.
  virtual void rope(Matrix x, std::int64_t head_dim, std::span<const std::int32_t> positions,
                    const RopeTables& tables, RopeDirection direction) = 0;

  /// Computes out (T, F) = silu(gate) * up.
  virtual void swiglu(ConstMatrix gate, ConstMatrix up, Matrix out) = 0;

  /// Computes the gradients of `swiglu`.
  virtual void swiglu_backward(ConstMatrix dout, ConstMatrix gate, ConstMatrix up, Matrix dgate,
                               Matrix dup) = 0;

  /// Computes y += factor * x, both (T, D).
  virtual void add_scaled(ConstMatrix x, float factor, Matrix y) = 0;

  /// Multiplies x (T, D) by `factor` in place.
  virtual void scale(float factor, Matrix x) = 0;

  /// Computes out (T, D) = or += x (T, D) * factors + bias, column by column.
  virtual void scale_columns(ConstMatrix x, std::span<const float> factors,
                             std::span<const float> bias, Store store, Matrix out) = 0;

  /// Adds the rows of dout * x, both (T, D), to dfactors (D), row by row (R2).
  virtual void scale_columns_backward(ConstMatrix dout, ConstMatrix x,
                                      std::span<float> dfactors) = 0;

  /// Rounds x (T, D) to bfloat16, ties to even, and stores it row by row in out (T * D).
  virtual void narrow(ConstMatrix x, std::span<std::uint16_t> out) = 0;

  /// Widens the bfloat16 numbers x (T * D) to out (T, D), which is exact.
  virtual void widen(std::span<const std::uint16_t> x, Matrix out) = 0;

  // -- optimizer -------------------------------------------------------------------------------

  /// Performs one step of `adamw_update`, bit for bit.
  virtual void adamw(const AdamWFactors<float>& factors, const AdamWTensor<float>& tensor) = 0;

  // -- attention -------------------------------------------------------------------------------

  /// Returns the size of one page of one layer. Units: bytes.
  [[nodiscard]] virtual std::int64_t kv_page_bytes(const AttentionShape& shape) const noexcept = 0;

  /// Stores k and v (T, K*C) in the pages of their segments, at the positions of the tokens,
  /// rounded to `kv_dtype`.
  virtual void kv_append(const AttentionShape& shape, std::span<const AttentionSegment> segments,
                         ConstMatrix k, ConstMatrix v, const RopeTables& rotation,
                         KvLayer cache) = 0;

  /// Computes out (T, H*C) = softmax(scale * q k^T) v per head, over the cached keys that each
  /// query may see, including its own.
  virtual void attention(const AttentionShape& shape, std::span<const AttentionSegment> segments,
                         ConstMatrix q, KvLayer cache, Matrix out, Matrix lse) = 0;

  /// Computes the gradients of `attention`.
  virtual void attention_backward_windows(const AttentionShape& shape,
                                          std::span<const AttentionSegment> segments,
                                          std::span<const KvGradient> gradients, ConstMatrix q,
                                          KvLayer cache, ConstMatrix out, ConstMatrix lse,
                                          ConstMatrix dout, Matrix dq) = 0;

  // -- token losses ----------------------------------------------------------------------------

  /// Computes logprobs[t] = log_softmax(logits[t] * inv_temperature)[targets[t]] and, unless
  /// `entropies` is empty, entropies[t], the entropy of that distribution in nats.
  virtual void log_softmax_gather(ConstMatrix logits, std::span<const std::int32_t> targets,
                                  float inv_temperature, std::span<float> logprobs,
                                  std::span<float> entropies) = 0;

  /// Replaces logits (T, V) with the gradient with respect to them of sum_t dlogprobs[t] *
  /// logprob[t] + dentropies[t] * entropy[t].
  virtual void log_softmax_backward(Matrix logits, std::span<const std::int32_t> targets,
                                    float inv_temperature, std::span<const float> dlogprobs,
                                    std::span<const float> dentropies) = 0;

  // -- sampling --------------------------------------------------------------------------------

  /// Returns the loops over blocks of masses. They compute the bits of the portable ones.
  [[nodiscard]] virtual const MassKernels& mass_kernels() const noexcept {
    return portable_mass_kernels();
  }
};

}  // namespace tidemill::engines::host
