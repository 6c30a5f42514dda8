// SPDX-License-Identifier: Apache-2.0
// The operations that a transformer is built from: the interface between model code and devices.
//
// Model code computes through this interface alone, on memory that it cannot read (matrix.hpp). A
// backend implements it in a subfolder with one public header, `factory.hpp`: `reference/` (plain
// loops, with which tests compare the others), `cpu/`, and `guarded/` (device memory that the host
// cannot read, for tests).
//
// Order: operations take effect in the order of the calls, but may run after the call has returned.
// `read` and `synchronize` wait for all operations before them and report what failed. Until then,
// the weights, prepared passes and vectors that an operation borrows must stay unchanged. Freeing
// device memory and replacing a prepared pass (`prepare_pass`) are allowed at any time: the backend
// keeps the old memory until the pending operations have run.
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
//      followed by a call with [k, n), if k is a multiple of the step that the backend declares
//      (`BackendTraits::row_sum_step`). For per-head norms, k counts tokens, each of several rows.
//      Backends on the processor add row by row: their step is 1, so every k is possible. A backend
//      with a larger step S may add up rows [0, S), [S, 2S) and so on of a call, each in one fixed
//      order, before it adds them to the destination.
//  R3. Thread independence. The number of worker threads never changes a bit.
//
// Sequences start at any row of a batch, so with a step S > 1 most cuts between sequences are not
// at multiples of it. Model code then passes the rows of each sequence to these operations in calls
// of their own, and cuts sequences at multiples of S from their first row
// (engines/transformer/backward_groups.hpp). Gradients therefore do not depend on the split into
// micro-batches with any step.
//
// Number formats:
//
//  - Activations enter and leave every operation as float32; only `copy` converts them to
//    and from bfloat16. Otherwise, only weights and cached keys and values may have a narrower
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
// features of a linear layer, P features of a slice of a layer, S rows of the gradients of keys and
// values. "= or +=" means that `store` decides.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "base/tensor/dtype.hpp"
#include "base/tensor/tensor.hpp"
#include "engines/ops/device_memory.hpp"
#include "engines/ops/matrix.hpp"
#include "engines/ops/op_types.hpp"
#include "engines/ops/pass.hpp"
#include "engines/ops/scratch_stack.hpp"
#include "engines/optimizer/adamw.hpp"
#include "engines/sampling/sampling_options.hpp"

namespace tidemill::engines {

/// Holds an embedding table (V, D) where the device can read it. Immutable.
class PreparedTable {
public:
  PreparedTable() = default;
  PreparedTable(const PreparedTable&) = delete;
  PreparedTable& operator=(const PreparedTable&) = delete;
  virtual ~PreparedTable() = default;
  [[nodiscard]] virtual std::int64_t num_rows() const noexcept = 0;
  [[nodiscard]] virtual std::int64_t width() const noexcept = 0;
  [[nodiscard]] virtual DType dtype() const noexcept = 0;
  /// Returns how much memory it keeps alive, including a mapped file. Units: bytes.
  [[nodiscard]] virtual std::int64_t size_bytes() const noexcept = 0;
};

/// Holds a vector in device memory: a gain, a bias or the like. Immutable once prepared.
class PreparedVector {
public:
  PreparedVector() = default;
  PreparedVector(DeviceBlock block, std::int64_t size) : block_(std::move(block)), size_(size) {}

  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] std::int64_t size() const noexcept { return size_; }
  [[nodiscard]] ConstVector view() const noexcept { return {block_.address(), size_}; }
  operator ConstVector() const noexcept {  // NOLINT(google-explicit-constructor)
    return view();
  }
  [[nodiscard]] std::int64_t size_bytes() const noexcept { return block_.size_bytes(); }

private:
  DeviceBlock block_;
  std::int64_t size_ = 0;
};

/// One linear layer of a `linear_group`, or a slice of its output features: those in
/// [first_output, first_output + P). `first_output` is a multiple of `kFeatureStep`.
struct LinearTerm {
  const PreparedWeight* weight = nullptr;  // (O, I)
  ConstVector bias;                        // (P), or empty
  Matrix y;                                // (T, P)
  std::int64_t first_output = 0;
};

/// Describes the low-rank product of an adapter: scale * (B (A x) + c). A and B are prepared in
/// f32.
struct LowRankTerm {
  const PreparedWeight* a = nullptr;  // (R, I); null: the adapter has no product
  const PreparedWeight* b = nullptr;  // (O, R)
  float scale = 0.0F;
  ConstVector scaled_c;  // (O), scale * c; may be empty
};

/// Points to one layer of a paged key/value cache: pages of `Ops::kv_page_bytes` each, whose layout
/// the backend chooses. The caller owns the memory.
struct KvLayer {
  DeviceAddress data;
};

/// Holds rotation angles: entry (p, i) of each table belongs to position p and frequency i. Both
/// tables have C/2 columns and already include the attention scaling of YaRN. Null tables rotate
/// nothing.
struct RopeTables {
  ConstMatrix cosine;
  ConstMatrix sine;
};

/// The operands of one optimizer step on a tensor or a part of one. All have the same size. See
/// `AdamWTensor`.
struct AdamWVectors {
  Vector weights;
  ConstVector gradient;
  Vector first_moment;
  Vector second_moment;
};

/// A token to sample: from which row of the logits, how, and with which random number.
struct SampleRequest {
  std::int64_t row = 0;
  const SamplingOptions* options = nullptr;
  TokenHistory history;
  SamplingKey key;
  bool wants_entropy = false;
  TokenMask mask = {};  // the tokens that may be sampled; borrowed until `sample` returns
};

/// The result of a `SampleRequest`.
struct SampleOutcome {
  std::int32_t token = -1;  // -1: there is none, because of `error`
  /// log_softmax(logits / T)[token], as `log_softmax_gather` computes it. T is the temperature, or
  /// 1 for greedy sampling.
  float logprob = 0.0F;
  /// The entropy of softmax(logits / T), without bias, penalties and filters; 0 unless the request
  /// wants it. Units: nats.
  float entropy = 0.0F;
  std::string error = {};  // empty if there is none
};

/// Runs the operations on one device.
///
/// `TIDEMILL_CHECK` checks all shapes: model code is the only caller, so a mismatch is a programmer
/// error. Matrices are kF32 unless an operation says otherwise. Outputs must not alias inputs
/// unless an operation says so. Threads: one call at a time over the operations and the memory of a
/// device.
class Ops {
public:
  Ops() = default;
  Ops(const Ops&) = delete;
  Ops& operator=(const Ops&) = delete;
  virtual ~Ops() = default;

  /// Returns the device description that a run prints, e.g. "cpu (AVX-512 BF16)".
  [[nodiscard]] virtual std::string_view description() const noexcept = 0;
  /// Returns the traits of the backend, which do not change.
  [[nodiscard]] virtual BackendTraits traits() const noexcept = 0;

  // -- memory ----------------------------------------------------------------------------------

  /// Returns the memory of the device.
  [[nodiscard]] virtual DeviceMemory& memory() noexcept = 0;
  /// Returns memory for intermediate results, which all users of the device share.
  [[nodiscard]] virtual ScratchStack& scratch() noexcept = 0;

  /// Waits for all operations.
  /// Errors: those of the device, for any operation since the last wait.
  [[nodiscard]] virtual Status synchronize() = 0;

  /// Copies device memory to host memory, after all operations before it. A matrix is copied row by
  /// row without gaps. `to` has as many elements as `from`.
  /// Errors: those of `synchronize`.
  [[nodiscard]] virtual Status read(ConstMatrix from, std::span<float> to) = 0;
  [[nodiscard]] Status read(ConstVector from, std::span<float> to) {
    return read(ConstMatrix{from.data, 1, from.size, from.size}, to);
  }

  /// Copies host memory to device memory. `from` may change once the call returns.
  virtual void write(std::span<const float> from, Matrix to) = 0;
  void write(std::span<const float> from, Vector to) {
    write(from, Matrix{to.data, 1, to.size, to.size});
  }

  /// Copies `values` to device memory: that of `old`, which is consumed, if it has the same size,
  /// otherwise new memory.
  /// Errors: those of `DeviceMemory::allocate`.
  [[nodiscard]] Result<PreparedVector> prepare_vector(std::span<const float> values,
                                                      PreparedVector old = {});

  /// Makes the lists in `contents` readable by the device. `old`, which may be null, is consumed;
  /// its memory is reused if the backend can.
  /// Errors: those of `DeviceMemory::allocate`.
  [[nodiscard]] virtual Result<std::unique_ptr<PreparedPass>> prepare_pass(
      PassContents contents, std::unique_ptr<PreparedPass> old) = 0;

  /// Copies `from` to `to`, which has the same shape. Each may be kF32 or kBF16. Rounds to bfloat16
  /// with ties to even; widening is exact. Where the types differ, the kBF16 matrix has no gaps
  /// between rows.
  virtual void copy(ConstMatrix from, Matrix to) = 0;

  /// Copies row from_rows[i] of `from` to row to_rows[i] of `to`, for every i. Skips an i if either
  /// number is -1. An empty list stands for 0, 1, 2 and so on; at least one list is not empty. Both
  /// matrices have the same type and width. No row is copied to twice.
  virtual void copy_rows(ConstMatrix from, IndexList from_rows, Matrix to, IndexList to_rows) = 0;

  /// Sets all elements of `to`.
  virtual void fill(float value, Matrix to) = 0;

  /// Copies page `from` of `page_bytes` bytes to page `to` of the same layer.
  virtual void copy_page(KvLayer cache, std::int64_t page_bytes, std::int32_t from,
                         std::int32_t to) = 0;

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
      std::unique_ptr<PreparedWeight> old, const WeightView& weight, DType compute,
      WeightUse use) = 0;

  /// Does the same with a weight (O, I) in device memory, without gaps between rows, but lays out
  /// `rows` alone. For rows that do not begin at 0, `old` is the result of the call for the rows
  /// before them, whose rows are kept. The result may be used once all rows are laid out.
  [[nodiscard]] virtual Result<std::unique_ptr<PreparedWeight>> replace_weight(
      std::unique_ptr<PreparedWeight> old, ConstMatrix weight, WeightRows rows, DType compute,
      WeightUse use) = 0;
  /// Does the same with all rows.
  [[nodiscard]] Result<std::unique_ptr<PreparedWeight>> replace_weight(
      std::unique_ptr<PreparedWeight> old, ConstMatrix weight, DType compute, WeightUse use) {
    return replace_weight(std::move(old), weight, {0, weight.rows}, compute, use);
  }

  /// Makes an embedding table (V, D) of any weight type readable by the device. The backend may
  /// share the memory of the tensor, which must not change.
  /// Errors: `kUnimplemented` naming the type.
  [[nodiscard]] virtual Result<std::unique_ptr<PreparedTable>> prepare_table(
      const Tensor& table) = 0;

  /// Returns a table whose rows are those of `weight`, which was prepared for products in kBlockI8
  /// and must outlive the table. It takes no memory.
  [[nodiscard]] virtual std::unique_ptr<PreparedTable> tied_table(const PreparedWeight& weight) = 0;

  /// Copies a table in device memory, rounded to `dtype` (kF32 or kBF16). Reuses the memory of
  /// `old`, which is consumed and may be null, if it can. Copies `rows` alone, as `replace_weight`
  /// does. Errors: those of `DeviceMemory::allocate`.
  [[nodiscard]] virtual Result<std::unique_ptr<PreparedTable>> replace_table(
      std::unique_ptr<PreparedTable> old, ConstMatrix table, WeightRows rows, DType dtype) = 0;
  /// Does the same with all rows.
  [[nodiscard]] Result<std::unique_ptr<PreparedTable>> replace_table(
      std::unique_ptr<PreparedTable> old, ConstMatrix table, DType dtype) {
    return replace_table(std::move(old), table, {0, table.rows}, dtype);
  }

  /// Computes y (T, O) = or += x (T, I) W^T + bias (O). `bias` may be empty.
  virtual void linear(ConstMatrix x, const PreparedWeight& weight, ConstVector bias, Store store,
                      Matrix y) = 0;

  /// Computes y = or += x (T, I) W^T + bias for each of `terms`. Every output has the bits that
  /// `linear` computes for the whole layer. Rounds x once for all weights of the same type. Outputs
  /// must not overlap.
  virtual void linear_group(ConstMatrix x, std::span<const LinearTerm> terms, Store store) = 0;

  /// Computes dx (T, I) = or += dy (T, O) W. Requires a weight prepared for backward.
  void linear_backward_input(ConstMatrix dy, const PreparedWeight& weight, Store store, Matrix dx) {
    linear_backward_input(dy, weight, 0, store, dx);
  }
  /// The same for the input features from `first_input` on, with the same bits. `dx` has as many
  /// columns as are to be computed. `first_input` is a multiple of `kFeatureStep`.
  virtual void linear_backward_input(ConstMatrix dy, const PreparedWeight& weight,
                                     std::int64_t first_input, Store store, Matrix dx) = 0;

  /// Computes dw (O, I) += dy^T (O, T) x (T, I), row by row (R2).
  virtual void linear_backward_weight(ConstMatrix dy, ConstMatrix x, Matrix dw) = 0;

  /// Adds the rows of dy (T, O) to dbias (O), row by row (R2).
  virtual void bias_backward(ConstMatrix dy, Vector dbias) = 0;

  /// Adds to the rows of y (T, O) that belong to each of `runs` the product of its adapter with the
  /// same rows of x (T, I), with the same bits as three calls: u = `linear` of x with A, `scale` of
  /// u, and y += `linear` of u with B and scaled_c. terms[i] is the product of adapter i. Requires
  /// that every run has at least one row, and that the runs are in row order and do not overlap.
  virtual void add_low_rank(ConstMatrix x, RunList runs, std::span<const LowRankTerm> terms,
                            Matrix y) = 0;

  // -- rows ------------------------------------------------------------------------------------

  /// Copies row ids[t] of the table (V, D) to row t of out (T, D), widened exactly.
  /// Requires 0 <= ids[t] < V.
  virtual void embed(IndexList ids, const PreparedTable& table, Matrix out) = 0;

  /// Adds dout[t] to row ids[t] of dtable (V, D), row by row (R2).
  virtual void embed_backward(IndexList ids, ConstMatrix dout, Matrix dtable) = 0;

  /// Computes out[t] = x[t] * rstd[t] * gain, with rstd[t] = 1 / sqrt(mean(x[t]^2) + eps). `out`
  /// may alias `x`; `rstd` (T) may be empty. For a per-head norm, the caller passes (T, H*C) as
  /// (T*H, C).
  virtual void rms_norm(ConstMatrix x, ConstVector gain, float eps, Matrix out, Vector rstd) = 0;

  /// Computes dx (T, D) = or += the gradient of the input, and adds the gradient of the gain to
  /// dgain (D), row by row (R2). An empty `dgain` is skipped.
  virtual void rms_norm_backward(ConstMatrix dout, ConstMatrix x, ConstVector gain,
                                 ConstVector rstd, Store store, Matrix dx, Vector dgain) = 0;

  /// Rotates x (T, n*C) in place. In row t, rotates the column pair (i, i + C/2) of each head by
  /// angle i of positions[t]. `kBackward` rotates in the opposite direction.
  virtual void rope(Matrix x, std::int64_t head_dim, IndexList positions, const RopeTables& tables,
                    RopeDirection direction) = 0;

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
  virtual void scale_columns(ConstMatrix x, ConstVector factors, ConstVector bias, Store store,
                             Matrix out) = 0;

  /// Adds the rows of dout * x, both (T, D), to dfactors (D), row by row (R2).
  virtual void scale_columns_backward(ConstMatrix dout, ConstMatrix x, Vector dfactors) = 0;

  /// Computes y (C, R) += x^T for x (R, C).
  virtual void add_transposed(ConstMatrix x, Matrix y) = 0;

  // -- optimizer -------------------------------------------------------------------------------

  /// Performs one step of `adamw_update`, bit for bit.
  virtual void adamw(const AdamWFactors<float>& factors, const AdamWVectors& tensor) = 0;

  /// Adds the sums of squares of the blocks of `values` to `sum`, in order, and returns the result:
  /// from 0, what `squared_norm` (engines/optimizer/gradient_norm.hpp) computes. Values divided at
  /// multiples of `kNormBlock` give the same bits part after part. Waits for all operations before
  /// it. Errors: those of `synchronize`.
  [[nodiscard]] virtual Result<double> squared_norm(ConstVector values, double sum) = 0;
  [[nodiscard]] Result<double> squared_norm(ConstVector values) {
    return squared_norm(values, 0.0);
  }

  // -- attention -------------------------------------------------------------------------------

  /// Returns the size of one page of one layer. Units: bytes.
  [[nodiscard]] virtual std::int64_t kv_page_bytes(const AttentionShape& shape) const noexcept = 0;

  /// Stores k and v (T, K*C) in the pages of their segments, at the positions of the tokens,
  /// rounded to `kv_dtype`. Rotates k first as `rope` does in direction `kForward`, unless the
  /// tables are empty (null data).
  virtual void kv_append(const AttentionShape& shape, SegmentList segments, ConstMatrix k,
                         ConstMatrix v, const RopeTables& rotation, KvLayer cache) = 0;

  /// Computes out (T, H*C) = softmax(scale * q k^T) v per head, over the cached keys that each
  /// query may see, including its own. `lse` (T, H) receives the log of the softmax's denominator;
  /// it may be empty (null data).
  virtual void attention(const AttentionShape& shape, SegmentList segments, ConstMatrix q,
                         KvLayer cache, Matrix out, Matrix lse) = 0;

  /// Computes the gradients of `attention`. Every segment is a window of a different sequence.
  /// Overwrites dq (T, H*C). Adds to dk and dv (both (S, K*C)) what the queries of each segment
  /// contribute to the gradients of the keys and values that they see. Those of a segment are the
  /// rows from `AttentionSegment::first_kv_row` on.
  ///
  /// The caller processes the windows of a sequence from the last to the first. After each window,
  /// the gradients of the window's own positions are complete. The gradient treats the rounding of
  /// operands as the identity (straight-through). Within a window, queries add in position order,
  /// so the same windows give the same bits.
  virtual void attention_backward_windows(const AttentionShape& shape, SegmentList segments,
                                          ConstMatrix q, KvLayer cache, ConstMatrix out,
                                          ConstMatrix lse, ConstMatrix dout, Matrix dk, Matrix dv,
                                          Matrix dq) = 0;

  // -- token losses ----------------------------------------------------------------------------

  /// Computes logprobs[t] = log_softmax(logits[t] * inv_temperature)[targets[t]] and, unless
  /// `entropies` is empty, entropies[t], the entropy of that distribution in nats. A target of -1
  /// gives 0 in both.
  virtual void log_softmax_gather(ConstMatrix logits, IndexList targets, float inv_temperature,
                                  Vector logprobs, Vector entropies) = 0;

  /// Replaces logits (T, V) with the gradient with respect to them of
  /// sum_t dlogprobs[t] * logprob[t] + dentropies[t] * entropy[t].
  /// `dentropies` may be empty. A target of -1 gives a row of zeros.
  virtual void log_softmax_backward(Matrix logits, IndexList targets, float inv_temperature,
                                    ConstVector dlogprobs, ConstVector dentropies) = 0;

  // -- sampling --------------------------------------------------------------------------------

  /// Samples a token for each of `requests` from its row of the logits, as `Sampler`
  /// (engines/sampling/sampler.hpp) does, bit for bit. Waits for all operations before it.
  /// Errors: those of `synchronize`. A request that fails has an entry with an error.
  [[nodiscard]] virtual Result<std::vector<SampleOutcome>> sample(
      ConstMatrix logits, std::span<const SampleRequest> requests) = 0;
};

}  // namespace tidemill::engines
