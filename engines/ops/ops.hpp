// SPDX-License-Identifier: Apache-2.0
// The operations that a transformer is built from: the interface between model code and devices.
//
// Model code computes through this interface alone. A backend implements it in a subfolder with one
// public header, `factory.hpp`: `reference/` (plain loops, the oracle of every test), `cpu/`, and
// later `cuda/`.
//
// Every operation of every backend follows three rules. Because of them, rollout and training
// compute bit-identical log-probabilities, and gradients do not depend on how a batch is split into
// micro-batches:
//
//  R1. Row independence. The bits of a row's result depend neither on the other rows of the call
//      nor on the position of the row among them. In attention, the bits of a token's result depend
//      neither on how its sequence is cut into segments nor on which pages hold its keys and
//      values.
//  R2. Ordered accumulation. `linear_backward_weight`, `bias_backward`, `scale_columns_backward`,
//      the gain gradient of `rms_norm_backward` and `embed_backward` add to their destination in
//      row order. One call with rows [0, n) gives the same bits as a call with [0, k)
//      followed by a call with [k, n).
//  R3. Thread independence. The number of worker threads never changes a bit.
//
// Number formats:
//
//  - Activations enter and leave every operation as float32; only `narrow` and `widen` convert them
//    to and from bfloat16. Otherwise, only weights and cached keys and values may have a narrower
//    type.
//  - A product with a bfloat16 weight first rounds each element of x to bfloat16, ties to even. It
//    accumulates in float32.
//  - A weight in NF4 is treated as the bfloat16 weight that its elements round to. Its products
//    have exactly the bits of products with that bfloat16 weight.
//  - Attention over float32 keys and values is float32 throughout.
//  - Attention over bfloat16 keys and values rounds its other operands to bfloat16. The forward
//    pass rounds q before q k^T, multiplies the scores by the scale afterwards, and rounds
//    exp(score - maximum) before the sum over v. The backward pass rounds q, dout, the attention
//    weights P and scale * dS, each before its products. Everything else stays float32: the maximum
//    and the exponentials of the softmax, its denominator (a sum of unrounded exponentials), lse,
//    and the row sums dout . out.
//
// Legend: T tokens (rows of the flat batch), D hidden size, H heads, K key/value heads, C head
// size, V vocabulary, F width of the MLP, R rank of a low-rank product, O and I output and input
// features of a linear layer. "= or +=" means that `store` decides.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/result.hpp"
#include "base/tensor/dtype.hpp"
#include "base/tensor/tensor.hpp"
#include "engines/ops/matrix.hpp"
#include "engines/optimizer/adamw.hpp"

namespace tidemill::engines {

/// Says whether an operation overwrites its destination or adds to it.
enum class Store : std::uint8_t { kOverwrite, kAdd };

/// Says what a prepared weight will be used for. A backend may use one layout for both.
enum class WeightUse : std::uint8_t { kForward, kForwardAndBackward };

/// Describes the weight of a linear layer as stored in a file: O x I, row-major, contiguous.
struct WeightView {
  const void* data = nullptr;
  /// kF32, kF16 or kBF16; kBlockI8 if I is a multiple of 32; kNf4 if I is a multiple of 64.
  DType dtype = DType::kF32;
  std::int64_t out_features = 0;
  std::int64_t in_features = 0;
  /// The buffer with exactly the bytes at `data` if it is backed by a mapped file, otherwise null.
  /// A backend that reads the weight only once may read it with `Buffer::copy_to`, piece by piece,
  /// instead of touching the mapping.
  const Buffer* file = nullptr;
};

/// Returns a view of `tensor` (O x I) as a weight. Borrows the tensor.
[[nodiscard]] inline WeightView weight_view(const Tensor& tensor) noexcept {
  return {tensor.data.bytes().data(), tensor.dtype, tensor.shape[0], tensor.shape[1],
          tensor.data.backing() == Backing::kFile ? &tensor.data : nullptr};
}

/// Holds a linear weight in a backend's own layout. Immutable; engines of one device may share it.
class PreparedWeight {
public:
  PreparedWeight() = default;
  PreparedWeight(const PreparedWeight&) = delete;
  PreparedWeight& operator=(const PreparedWeight&) = delete;
  virtual ~PreparedWeight() = default;
  [[nodiscard]] virtual std::int64_t out_features() const noexcept = 0;
  [[nodiscard]] virtual std::int64_t in_features() const noexcept = 0;
  /// Returns how much memory it owns. Units: bytes.
  [[nodiscard]] virtual std::int64_t size_bytes() const noexcept = 0;
  /// Returns true if preparation found that all elements are finite. False proves nothing: the
  /// backend may not have checked, or rounding to a narrower type may have overflowed.
  [[nodiscard]] virtual bool seen_finite() const noexcept { return false; }
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

/// Holds the constants of one attention layer.
struct AttentionShape {
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;  // divides num_heads; query head h reads kv head h / (H / K)
  std::int64_t head_dim = 0;
  float scale = 0.0F;             // multiplies q.k
  std::int64_t window = 0;        // query i sees keys j with 0 <= i - j < window; 0: no window
  std::int64_t page_tokens = 16;  // positions in one page of the cache
  DType kv_dtype = DType::kF32;   // kF32 or kBF16: the type that keys and values are stored in
};

/// Points to one layer of a paged key/value cache: pages of `Ops::kv_page_bytes` each, whose layout
/// the backend chooses. The caller owns the memory.
struct KvLayer {
  std::byte* data = nullptr;
};

/// Describes consecutive tokens of one sequence within the flat batch: a decode step (one token), a
/// prefill chunk, or a training window.
struct AttentionSegment {
  std::int64_t first_row = 0;  // its rows are [first_row, first_row + num_tokens)
  std::int64_t num_tokens = 0;
  std::int64_t first_position = 0;  // position of its first token in the sequence
  /// Cache pages of the sequence: position p is stored in pages[p / page_tokens]. They cover at
  /// least positions [0, first_position + num_tokens).
  std::span<const std::int32_t> pages;
};

/// Accumulates the gradients of one sequence's keys and values. Both are (positions, K*C), and row
/// p belongs to position p. The caller owns the memory.
struct KvGradient {
  Matrix dk;
  Matrix dv;
};

/// Holds rotation angles: entry (p, i) of each table belongs to position p and frequency i. Both
/// tables have C/2 columns and already include the attention scaling of YaRN.
struct RopeTables {
  ConstMatrix cosine;
  ConstMatrix sine;
};

/// Says in which direction `Ops::rope` rotates.
enum class RopeDirection : std::uint8_t { kForward, kBackward };

/// Runs the operations on one device.
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

  /// Returns the device description that a run prints, e.g. "cpu (AVX-512 BF16)".
  [[nodiscard]] virtual std::string_view description() const noexcept = 0;

  // -- linear layers ---------------------------------------------------------------------------

  /// Lays `weight` out for this backend. `compute` is the type that products are computed in:
  ///  - kF32: narrower elements are widened, which is exact.
  ///  - kBF16: wider elements are rounded.
  ///  - kBlockI8: the weight is quantized unless it is in blocks already. `linear` rounds x to
  ///    blocks of 32. Gradients are not rounded.
  ///  - kNf4: the weight is quantized unless it is in NF4 already. Products use the bfloat16 weight
  ///    that it represents.
  /// Errors: `kUnimplemented` for types or uses that this backend lacks, and for weights whose
  /// rows cannot be split into blocks.
  [[nodiscard]] virtual Result<std::unique_ptr<PreparedWeight>> prepare_weight(
      const WeightView& weight, DType compute, WeightUse use) = 0;

  /// Does the same as `prepare_weight`, but reuses the memory of `old` if the backend can. `old` is
  /// consumed. It may be null or a weight of any shape and type, and must not be in use elsewhere.
  [[nodiscard]] virtual Result<std::unique_ptr<PreparedWeight>> replace_weight(
      std::unique_ptr<PreparedWeight> old, const WeightView& weight, DType compute, WeightUse use) {
    old.reset();  // freed first: holding both would double peak memory
    return prepare_weight(weight, compute, use);
  }

  /// Computes y (T, O) = or += x (T, I) W^T + bias (O). `bias` may be empty.
  virtual void linear(ConstMatrix x, const PreparedWeight& weight, std::span<const float> bias,
                      Store store, Matrix y) = 0;

  /// Computes dx (T, I) = or += dy (T, O) W. Requires a weight prepared for backward.
  virtual void linear_backward_input(ConstMatrix dy, const PreparedWeight& weight, Store store,
                                     Matrix dx) = 0;

  /// Computes dw (O, I) += dy^T (O, T) x (T, I), row by row (R2).
  virtual void linear_backward_weight(ConstMatrix dy, ConstMatrix x, Matrix dw) = 0;

  /// Adds the rows of dy (T, O) to dbias (O), row by row (R2).
  virtual void bias_backward(ConstMatrix dy, std::span<float> dbias) = 0;

  /// Adds to y (T, O) the product of each term with its rows of x (T, I), with the same bits as
  /// three calls: u = `linear` of x with A, `scale` of u, and y += `linear` of u with B and
  /// scaled_c. Requires that every term has at least one row, and that the terms are in row order
  /// and do not overlap.
  virtual void add_low_rank(ConstMatrix x, std::span<const LowRankTerm> terms, Matrix y) = 0;

  // -- rows ------------------------------------------------------------------------------------

  /// Copies row ids[t] of the table (V, D) to row t of out (T, D), widened exactly.
  /// Requires 0 <= ids[t] < V.
  virtual void embed(std::span<const std::int32_t> ids, const WeightView& table, Matrix out) = 0;

  /// Adds dout[t] to row ids[t] of dtable (V, D), row by row (R2).
  virtual void embed_backward(std::span<const std::int32_t> ids, ConstMatrix dout,
                              Matrix dtable) = 0;

  /// Computes out[t] = x[t] * rstd[t] * gain, with rstd[t] = 1 / sqrt(mean(x[t]^2) + eps). `out`
  /// may alias `x`; `rstd` (T) may be empty. For a per-head norm, the caller passes (T, H*C) as
  /// (T*H, C).
  virtual void rms_norm(ConstMatrix x, std::span<const float> gain, float eps, Matrix out,
                        std::span<float> rstd) = 0;

  /// Computes dx (T, D) = or += the gradient of the input, and adds the gradient of the gain to
  /// dgain (D), row by row (R2). An empty `dgain` is skipped.
  virtual void rms_norm_backward(ConstMatrix dout, ConstMatrix x, std::span<const float> gain,
                                 std::span<const float> rstd, Store store, Matrix dx,
                                 std::span<float> dgain) = 0;

  /// Rotates x (T, n*C) in place. In row t, rotates the column pair (i, i + C/2) of each head by
  /// angle i of positions[t]. `kBackward` rotates in the opposite direction.
  virtual void rope(Matrix x, std::int64_t head_dim, std::span<const std::int32_t> positions,
                    const RopeTables& tables, RopeDirection direction) = 0;

  /// Computes out (T, F) = silu(gate) * up.
  virtual void swiglu(ConstMatrix gate, ConstMatrix up, Matrix out) = 0;

  /// Computes the gradients of `swiglu`. `dgate` and `dup` may alias `gate` and `up`.
  virtual void swiglu_backward(ConstMatrix dout, ConstMatrix gate, ConstMatrix up, Matrix dgate,
                               Matrix dup) = 0;

  /// Computes y += factor * x, both (T, D).
  virtual void add_scaled(ConstMatrix x, float factor, Matrix y) = 0;

  /// Multiplies x (T, D) by `factor` in place.
  virtual void scale(float factor, Matrix x) = 0;

  /// Computes out (T, D) = or += x (T, D) * factors + bias, column by column. `factors` (D) and
  /// `bias` (D or empty) have one entry per column. `out` may alias `x`.
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
  /// rounded to `kv_dtype`. Rotates k first as `rope` does in direction `kForward`, unless the
  /// tables are empty (null data).
  virtual void kv_append(const AttentionShape& shape, std::span<const AttentionSegment> segments,
                         ConstMatrix k, ConstMatrix v, const RopeTables& rotation,
                         KvLayer cache) = 0;

  /// Computes out (T, H*C) = softmax(scale * q k^T) v per head, over the cached keys that each
  /// query may see, including its own. `lse` (T, H) receives the log of the softmax's denominator;
  /// it may be empty (null data).
  virtual void attention(const AttentionShape& shape, std::span<const AttentionSegment> segments,
                         ConstMatrix q, KvLayer cache, Matrix out, Matrix lse) = 0;

  /// Computes the gradients of `attention`. Every segment is a window of a different sequence.
  /// Overwrites dq (T, H*C). Adds to `gradients[i]` what the queries of segment i contribute to the
  /// gradients of the keys and values that they see. `gradients[i]` must cover at least positions
  /// [0, first_position + num_tokens).
  ///
  /// The caller processes the windows of a sequence from the last to the first. After each window,
  /// the gradients of the window's own positions are complete. The gradient treats the rounding of
  /// operands as the identity (straight-through). Within a window, queries add in position order,
  /// so the same windows give the same bits.
  virtual void attention_backward_windows(const AttentionShape& shape,
                                          std::span<const AttentionSegment> segments,
                                          std::span<const KvGradient> gradients, ConstMatrix q,
                                          KvLayer cache, ConstMatrix out, ConstMatrix lse,
                                          ConstMatrix dout, Matrix dq) = 0;

  // -- token losses ----------------------------------------------------------------------------

  /// Computes logprobs[t] = log_softmax(logits[t] * inv_temperature)[targets[t]] and, unless
  /// `entropies` is empty, entropies[t], the entropy of that distribution in nats. A target of -1
  /// gives 0 in both.
  virtual void log_softmax_gather(ConstMatrix logits, std::span<const std::int32_t> targets,
                                  float inv_temperature, std::span<float> logprobs,
                                  std::span<float> entropies) = 0;

  /// Replaces logits (T, V) with the gradient with respect to them of
  /// sum_t dlogprobs[t] * logprob[t] + dentropies[t] * entropy[t].
  /// `dentropies` may be empty. A target of -1 gives a row of zeros.
  virtual void log_softmax_backward(Matrix logits, std::span<const std::int32_t> targets,
                                    float inv_temperature, std::span<const float> dlogprobs,
                                    std::span<const float> dentropies) = 0;
};

}  // namespace tidemill::engines
