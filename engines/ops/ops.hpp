// SPDX-License-Identifier: Apache-2.0
// The operations a transformer is made of, and the border between model code and devices.
//
// Model code calls these and nothing else. A backend is a folder beside this file with one public
// `factory.hpp`: `reference/` (plain loops, the oracle of every test), `cpu/`, later `cuda/`.
//
// Three rules hold for every operation of every backend; the bit-equality of rollout and training
// log-probabilities (and of gradients for any cut into micro-batches) rests on them:
//
//  R1. Row independence. A row's result has the same bits whatever other rows are in the call and
//      wherever it stands among them. Attention gives a token the same bits however its sequence
//      is cut into segments and whatever pages hold its keys.
//  R2. Ordered accumulation. `linear_backward_weight`, `bias_backward`, `scale_columns_backward`,
//      the gain gradient and the embedding gradient add row after row into the destination: calling
//      once with rows [0, n) or twice with [0, k) and [k, n) gives the same bits.
//  R3. Thread independence. The number of workers never changes a bit.
//
// Activations are float32 where operations meet them. Only weights and cached keys and values may
// be bfloat16. A product with a bfloat16 weight rounds each element of x to bfloat16 first, ties to
// even, and accumulates in float32. So does attention over bfloat16 keys and values: it rounds q
// before q k^T, whose result then takes the scale, and exp(score - maximum) before the sum over v;
// its gradient rounds q, dout, the weights P and scale * dS, each before its products. The
// softmax's maximum, exponential and denominator (of weights that are not rounded), lse and the row
// sums dout . out are float32, and so is all of attention over float32 keys and values. A
// weight in NF4 stands for the bfloat16 weight that its elements round to, bit for bit.
//
// Legend: T tokens (rows of the flat batch), D hidden size, H heads, K key/value heads, C head
// size, V vocabulary, O and I output and input features of a linear layer.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/dtype.hpp"
#include "base/result.hpp"
#include "base/tensor.hpp"
#include "engines/ops/matrix.hpp"
#include "engines/optimizer/adamw.hpp"

namespace tidemill::engines {

/// Whether an operation replaces its destination or adds to it.
enum class Store : std::uint8_t { kOverwrite, kAdd };

/// What a prepared weight will be used for. A backend may keep one layout for both.
enum class WeightUse : std::uint8_t { kForward, kForwardAndBackward };

/// The weight of a linear layer as a file holds it: O x I, row-major, contiguous.
struct WeightView {
  const void* data = nullptr;
  /// kF32, kF16, kBF16, kBlockI8 if I is a multiple of 32, or kNf4 if of 64.
  DType dtype = DType::kF32;
  std::int64_t out_features = 0;
  std::int64_t in_features = 0;
  /// The buffer that `data` is all of, if that is a mapped file's: who goes through it once reads
  /// it from there, piece by piece.
  const Buffer* file = nullptr;
};

/// Returns the weight that `tensor` (O x I) is. Borrows it.
[[nodiscard]] inline WeightView weight_view(const Tensor& tensor) noexcept {
  return {tensor.data.bytes().data(), tensor.dtype, tensor.shape[0], tensor.shape[1],
          tensor.data.backing() == Backing::kFile ? &tensor.data : nullptr};
}

/// A linear weight in a backend's own layout. Immutable; may be shared by engines of one device.
class PreparedWeight {
public:
  PreparedWeight() = default;
  PreparedWeight(const PreparedWeight&) = delete;
  PreparedWeight& operator=(const PreparedWeight&) = delete;
  virtual ~PreparedWeight() = default;
  [[nodiscard]] virtual std::int64_t out_features() const noexcept = 0;
  [[nodiscard]] virtual std::int64_t in_features() const noexcept = 0;
  /// Returns the memory it owns.
  [[nodiscard]] virtual std::int64_t size_bytes() const noexcept = 0;
  /// Returns whether all elements were seen to be finite while they were laid out. False says
  /// nothing: perhaps nobody looked, or an element went beyond the range of a narrower type.
  [[nodiscard]] virtual bool seen_finite() const noexcept { return false; }
};

/// A low-rank product on some rows, scale * (B (A x) + c). Weights are prepared in f32.
struct LowRankTerm {
  std::int64_t first_row = 0;
  std::int64_t num_rows = 0;
  const PreparedWeight* a = nullptr;  // (R, I)
  const PreparedWeight* b = nullptr;  // (O, R)
  float scale = 0.0F;
  std::span<const float> scaled_c;  // (O), scale * c; may be empty
};

/// The fixed quantities of one attention layer.
struct AttentionShape {
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;  // divides num_heads; query head h reads kv head h / (H / K)
  std::int64_t head_dim = 0;
  float scale = 0.0F;             // multiplies q.k
  std::int64_t window = 0;        // query i sees keys j with 0 <= i - j < window; 0: no window
  std::int64_t page_tokens = 16;  // positions in one page of the cache
  DType kv_dtype = DType::kF32;   // kF32 or kBF16: what keys and values are rounded to when stored
};

/// One layer of a paged key/value cache: pages of `Ops::kv_page_bytes` each, laid out as the
/// backend likes. The memory is the caller's.
struct KvLayer {
  std::byte* data = nullptr;
};

/// A run of consecutive tokens of one sequence within the flat batch: a decode step (one token), a
/// prefill chunk, or a training window.
struct AttentionSegment {
  std::int64_t first_row = 0;  // its rows are [first_row, first_row + num_tokens)
  std::int64_t num_tokens = 0;
  std::int64_t first_position = 0;  // position of its first token in the sequence
  /// Cache pages of the sequence: position p lives in pages[p / page_tokens]. Covers at least
  /// positions [0, first_position + num_tokens).
  std::span<const std::int32_t> pages;
};

/// Where the gradients of one sequence's keys and values gather: both (positions, K*C), row p of
/// position p. The memory is the caller's.
struct KvGradient {
  Matrix dk;
  Matrix dv;
};

/// Rotation angles: entry (p, i) of each table belongs to position p and frequency i.
/// Both have C/2 columns; scaling of the rotation (yarn) is part of the tables.
struct RopeTables {
  ConstMatrix cosine;
  ConstMatrix sine;
};

enum class RopeDirection : std::uint8_t { kForward, kBackward };

/// The operations of one device.
///
/// Shapes are checked by `TIDEMILL_CHECK`: model code is the only caller, so a mismatch is a
/// programmer error. Outputs never alias inputs unless said.
/// Threads: one call at a time per object; an object uses its own workers inside a call.
class Ops {
public:
  Ops() = default;
  Ops(const Ops&) = delete;
  Ops& operator=(const Ops&) = delete;
  virtual ~Ops() = default;

  /// Returns what a run prints about its device, e.g. "cpu (AVX-512 BF16)".
  [[nodiscard]] virtual std::string_view description() const noexcept = 0;

  // -- linear layers ---------------------------------------------------------------------------

  /// Lays `weight` out for this backend. `compute` is kF32 (what is narrower is widened, exactly),
  /// kBF16 (what is wider is rounded), kBlockI8 (what is not in blocks yet is quantised, x is
  /// rounded to blocks of 32 in `linear`, and gradients are not rounded), or kNf4: quantised unless
  /// it is, multiplied as the bfloat16 weight that it stands for.
  /// Errors: `kUnimplemented` for types or uses this backend lacks, and for what cannot be cut into
  /// blocks.
  [[nodiscard]] virtual Result<std::unique_ptr<PreparedWeight>> prepare_weight(
      const WeightView& weight, DType compute, WeightUse use) = 0;

  /// The same in place of `old`, which nobody else may read any more: in its memory where that
  /// serves, whatever it held. `old` may be null, or a weight of any shape and type.
  [[nodiscard]] virtual Result<std::unique_ptr<PreparedWeight>> replace_weight(
      std::unique_ptr<PreparedWeight> old, const WeightView& weight, DType compute, WeightUse use) {
    old.reset();  // both at once could be much
    return prepare_weight(weight, compute, use);
  }

  /// y (T, O) = or += x (T, I) W^T + bias (O). `bias` may be empty.
  virtual void linear(ConstMatrix x, const PreparedWeight& weight, std::span<const float> bias,
                      Store store, Matrix y) = 0;

  /// dx (T, I) = or += dy (T, O) W. Requires a weight prepared for backward.
  virtual void linear_backward_input(ConstMatrix dy, const PreparedWeight& weight, Store store,
                                     Matrix dx) = 0;

  /// dw (O, I) += dy^T (O, T) x (T, I), row after row (R2).
  virtual void linear_backward_weight(ConstMatrix dy, ConstMatrix x, Matrix dw) = 0;

  /// dbias (O) += the sum of the rows of dy (T, O), row after row (R2).
  virtual void bias_backward(ConstMatrix dy, std::span<float> dbias) = 0;

  /// y (T, O) += each term's product with its rows of x (T, I). Each gets the bits of three calls:
  /// u = `linear` of x with A, `scale` of u, y += `linear` of u with B and scaled_c.
  /// Requires terms with rows, in row order, that do not overlap.
  virtual void add_low_rank(ConstMatrix x, std::span<const LowRankTerm> terms, Matrix y) = 0;

  // -- rows ------------------------------------------------------------------------------------

  /// out (T, D) = table[ids[t]]; the table (V, D) is a `WeightView`, widened exactly.
  /// Requires 0 <= ids[t] < V.
  virtual void embed(std::span<const std::int32_t> ids, const WeightView& table, Matrix out) = 0;

  /// dtable (V, D) [ids[t]] += dout[t], row after row (R2).
  virtual void embed_backward(std::span<const std::int32_t> ids, ConstMatrix dout,
                              Matrix dtable) = 0;

  /// out[t] = x[t] * rstd[t] * gain, rstd[t] = 1 / sqrt(mean(x[t]^2) + eps). `out` may alias `x`.
  /// Also serves per-head norms: view (T, H*C) as (T*H, C). `rstd` (T) may be empty.
  virtual void rms_norm(ConstMatrix x, std::span<const float> gain, float eps, Matrix out,
                        std::span<float> rstd) = 0;

  /// dx (T, D) = or += the input gradient; dgain (D) += row after row (R2), skipped when empty.
  virtual void rms_norm_backward(ConstMatrix dout, ConstMatrix x, std::span<const float> gain,
                                 std::span<const float> rstd, Store store, Matrix dx,
                                 std::span<float> dgain) = 0;

  /// Rotates x (T, n*C) in place, each head's pairs (i, i + C/2), by the angles of positions[t];
  /// `kBackward` rotates the other way.
  virtual void rope(Matrix x, std::int64_t head_dim, std::span<const std::int32_t> positions,
                    const RopeTables& tables, RopeDirection direction) = 0;

  /// out (T, F) = silu(gate) * up.
  virtual void swiglu(ConstMatrix gate, ConstMatrix up, Matrix out) = 0;

  /// Gradients of `swiglu`; `dgate` and `dup` may alias `gate` and `up`.
  virtual void swiglu_backward(ConstMatrix dout, ConstMatrix gate, ConstMatrix up, Matrix dgate,
                               Matrix dup) = 0;

  /// y += factor * x, both (T, D).
  virtual void add_scaled(ConstMatrix x, float factor, Matrix y) = 0;

  /// x *= factor, (T, D).
  virtual void scale(float factor, Matrix x) = 0;

  /// out (T, D) = or += x * factors + bias, column by column; `factors` (D), `bias` (D) or empty.
  /// `out` may alias `x`.
  virtual void scale_columns(ConstMatrix x, std::span<const float> factors,
                             std::span<const float> bias, Store store, Matrix out) = 0;

  /// dfactors (D) += the sum of the rows of dout * x, both (T, D), row after row (R2).
  virtual void scale_columns_backward(ConstMatrix dout, ConstMatrix x,
                                      std::span<float> dfactors) = 0;

  /// out (T * D, row after row) = x (T, D) rounded to bfloat16, ties to even.
  virtual void narrow(ConstMatrix x, std::span<std::uint16_t> out) = 0;

  /// out (T, D) = the bfloat16 numbers x (T * D), exactly.
  virtual void widen(std::span<const std::uint16_t> x, Matrix out) = 0;

  // -- optimizer -------------------------------------------------------------------------------

  /// One step of `adamw_update`, with its bits.
  virtual void adamw(const AdamWFactors<float>& factors, const AdamWTensor<float>& tensor) = 0;

  // -- attention -------------------------------------------------------------------------------

  /// Returns the size of one page of one layer.
  [[nodiscard]] virtual std::int64_t kv_page_bytes(const AttentionShape& shape) const noexcept = 0;

  /// Stores k and v (T, K*C) of every segment at its positions, rounded to `kv_dtype`; k as `rope`
  /// rotates it forward by the angles of its position, or as it is when the tables are empty (data
  /// null).
  virtual void kv_append(const AttentionShape& shape, std::span<const AttentionSegment> segments,
                         ConstMatrix k, ConstMatrix v, const RopeTables& rotation,
                         KvLayer cache) = 0;

  /// out (T, H*C) = softmax(scale * q k^T) v per head over the cached keys each query may see, its
  /// own included. `lse` (T, H), the log of the softmax's denominator, may be empty (data null).
  virtual void attention(const AttentionShape& shape, std::span<const AttentionSegment> segments,
                         ConstMatrix q, KvLayer cache, Matrix out, Matrix lse) = 0;

  /// Gradients of `attention` for segments that are windows of sequences, no two of one sequence.
  /// dq (T, H*C) is overwritten; what the window's queries give the keys and values that they see
  /// is added to `gradients[i]` of segment i, which covers at least positions [0, first_position +
  /// num_tokens). Windows processed from a sequence's last to its first leave the gradients of a
  /// window's own positions complete once it is done. Rounding of operands is passed straight
  /// through. Within a window, queries add in position order: the same windows give the same bits.
  virtual void attention_backward_windows(const AttentionShape& shape,
                                          std::span<const AttentionSegment> segments,
                                          std::span<const KvGradient> gradients, ConstMatrix q,
                                          KvLayer cache, ConstMatrix out, ConstMatrix lse,
                                          ConstMatrix dout, Matrix dq) = 0;

  // -- token losses ----------------------------------------------------------------------------

  /// logprobs[t] = log_softmax(logits[t] * inv_temperature)[targets[t]]; entropies[t] = entropy of
  /// that distribution, in nats (skipped when empty). A target of -1 gives 0 in both.
  virtual void log_softmax_gather(ConstMatrix logits, std::span<const std::int32_t> targets,
                                  float inv_temperature, std::span<float> logprobs,
                                  std::span<float> entropies) = 0;

  /// Replaces logits (T, V) by the gradient of
  /// sum_t dlogprobs[t] * logprob[t] + dentropies[t] * entropy[t] with respect to them.
  /// `dentropies` may be empty. A target of -1 gives a zero row.
  virtual void log_softmax_backward(Matrix logits, std::span<const std::int32_t> targets,
                                    float inv_temperature, std::span<const float> dlogprobs,
                                    std::span<const float> dentropies) = 0;
};

}  // namespace tidemill::engines
