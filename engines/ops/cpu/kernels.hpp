// SPDX-License-Identifier: Apache-2.0
// The interface of the CPU backend's inner loops: one table of functions per instruction set.
//
// A job is one worker's share of an operation. How work is divided into jobs never changes a bit,
// because one fixed chain of operations computes each element of a result.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engines/ops/host/host_ops.hpp"
#include "engines/sampling/mass_kernels.hpp"

namespace tidemill::engines::cpu {

// All operands of this backend are in host memory.
using host::ConstMatrix;
using host::KvGradient;
using host::KvLayer;
using host::LinearTerm;
using host::LowRankTerm;
using host::Matrix;
using host::RopeTables;

/// Number of columns of a panel of a packed matrix.
inline constexpr std::int64_t kPanel = 16;

/// Returns the number of panels that hold `cols` columns.
[[nodiscard]] constexpr std::int64_t panels_for(std::int64_t cols) noexcept {
  return (cols + kPanel - 1) / kPanel;
}

/// Return the offsets of the 512 values and of the 16 scales (halves) of block `block` (32
/// features) in an int8 panel. Two blocks share a cache line of scales, so that the cache lines of
/// a panel are read in order. Units: bytes.
[[nodiscard]] constexpr std::int64_t int8_values_at(std::int64_t block) noexcept {
  return block / 2 * (64 + 1024) + 64 + block % 2 * 512;
}
[[nodiscard]] constexpr std::int64_t int8_scales_at(std::int64_t block) noexcept {
  return block / 2 * (64 + 1024) + block % 2 * 32;
}

/// Describes packed panels of a matrix B (depth x cols). See panels.hpp.
struct PanelShape {
  std::int64_t depth = 0;
  std::int64_t cols = 0;
  /// kF32, kBF16, kBlockI8 (depth must be a multiple of 32) or kNf4 (a multiple of 64).
  DType dtype = DType::kF32;

  [[nodiscard]] constexpr std::int64_t num_panels() const noexcept { return panels_for(cols); }
  /// Returns the size of one panel, including the padding of an odd depth. Units: elements for kF32
  /// and kBF16, bytes for blocks. kBlockI8 has a byte per weight and a half per block of 32; kNf4
  /// has half a byte per weight and a byte per block of 64.
  [[nodiscard]] constexpr std::int64_t panel_elements() const noexcept {
    switch (dtype) {
      case DType::kBF16: return (depth + 1) / 2 * 2 * kPanel;
      case DType::kBlockI8: return (depth / 32 + 1) / 2 * 64 + depth * kPanel;
      case DType::kNf4: return depth / 2 * kPanel + depth / 64 * kPanel;
      default: return depth * kPanel;
    }
  }
  [[nodiscard]] constexpr std::int64_t panel_bytes() const noexcept {
    return panel_elements() * (dtype == DType::kF32 ? 4 : dtype == DType::kBF16 ? 2 : 1);
  }
  /// Returns the number of floats that the blocks of kNf4 share: a scale for every 256 blocks,
  /// counted row after row of W, and one offset. They are stored after the last panel.
  [[nodiscard]] constexpr std::int64_t num_shared() const noexcept {
    return dtype == DType::kNf4 ? (cols * (depth / 64) + 255) / 256 + 1 : 0;
  }
  [[nodiscard]] constexpr std::int64_t size_bytes() const noexcept {
    return num_panels() * panel_bytes() + num_shared() * 4;
  }
};

/// Packs up to 16 rows of W, each `depth` long, as one panel. The rows have the panel's type.
struct PackJob {
  const void* rows = nullptr;
  std::int64_t row_stride = 0;  // elements
  std::int64_t num_rows = 0;
  std::int64_t depth = 0;
  void* panel = nullptr;
};

/// Builds `num_panels` panels of B^T (`shape.cols` deep) from the panels of B. The first one holds
/// columns [16 * first_panel, 16 * first_panel + 16) of B^T. Rows past `shape.cols` are written
/// too, up to a multiple of 16.
struct TransposeJob {
  PanelShape shape;  // of B
  const void* panels = nullptr;
  std::int64_t first_panel = 0;
  std::int64_t num_panels = 0;
  void* out = nullptr;
  std::int64_t out_stride = 0;  // elements from one panel of B^T to the next
};

/// Expands rows [first_row, first_row + num_rows) of `num_panels` panels of B (kNf4) to bfloat16
/// panels that are `num_rows` deep. `first_row` and `num_rows` are multiples of 16. Elements past
/// the last column are 0.
struct ExpandJob {
  PanelShape shape;                     // of B
  const std::byte* panels = nullptr;    // all panels of B, followed by the shared floats
  const float* scale_values = nullptr;  // 256 values of scale codes; see base/tensor/block_nf4.hpp
  const float* element_values = nullptr;  // 16 values of weight codes
  std::int64_t first_panel = 0;
  std::int64_t num_panels = 0;
  std::int64_t first_row = 0;
  std::int64_t num_rows = 0;
  std::uint16_t* out = nullptr;  // consecutive panels of num_rows * 16 elements
};

/// Computes y = or += x B + bias for the columns of consecutive panels of B.
///
/// Every element is one chain of multiply-adds over the depth in ascending order, to which the bias
/// and then the old value of y are added. The depth is at least 1.
struct ProductJob {
  /// Rows of floats, or rounded rows as `round_to_bf16` and `round_to_int8` write them.
  const void* x = nullptr;
  std::int64_t x_stride = 0;  // elements, or bytes if rows are rounded to blocks
  std::int64_t rows = 0;
  std::int64_t depth = 0;
  const void* panels = nullptr;
  std::int64_t panel_stride = 0;  // elements
  std::int64_t cols = 0;          // of y, in the given panels
  const float* bias = nullptr;    // `cols`, or null
  Store store = Store::kOverwrite;
  float* y = nullptr;
  std::int64_t y_stride = 0;
};

/// Computes y += (scale * (x A^T)) B^T + c for a few rows. A and B are float panels with `rank` and
/// `cols` outputs.
///
/// Every element of u = x A^T is one chain of multiply-adds in ascending order, as in `ProductJob`,
/// and is then scaled. The product of u and B, with c as the bias, is added to y in the same way.
struct LowRankJob {
  const float* x = nullptr;
  std::int64_t x_stride = 0;
  std::int64_t rows = 0;
  std::int64_t depth = 0;
  const float* a = nullptr;
  std::int64_t rank = 0;
  float scale = 0.0F;
  const float* b = nullptr;
  std::int64_t cols = 0;
  const float* c = nullptr;  // `cols`, or null
  float* y = nullptr;
  std::int64_t y_stride = 0;
  float* u = nullptr;  // scratch: 8 rows of panels_for(rank) * kPanel floats
};

/// Computes out (a.cols x b.cols) += a^T b, row after row.
///
/// Both operands are packed: `a` in panels of `KernelTable::gradient_panel_width` columns, `b` in
/// panels of 16 columns. Each panel has `depth` rows.
struct WeightGradientJob {
  const float* a_panels = nullptr;
  const float* b_panels = nullptr;
  std::int64_t depth = 0;
  Matrix out;
};

/// Computes out (a.cols x b.cols) += a^T b for the columns [first, end) of b and out, row after
/// row. Intended for an `a` with few columns; nothing is packed.
struct LowRankGradientJob {
  ConstMatrix a;
  ConstMatrix b;
  std::int64_t first = 0;
  std::int64_t end = 0;
  Matrix out;
};

/// Describes the memory layout of one layer's cache.
///
/// The cache consists of units of 4 bytes: floats, or pairs of bfloat16 whose first element is the
/// low half. For each kv head, a page holds the transposed keys (lanes are positions), followed by
/// the values (lanes are features):
///   kF32   keys: head_dim x page_tokens. Values: page_tokens x head_dim.
///   kBF16  keys: pairs of features (i, i + 1) x page_tokens, i even; the last feature of an odd
///          head_dim is paired with zeros. Values: pairs of positions (p, p + 1) x head_dim, p
///          even.
/// If a page has an odd number of tokens, the pair at its border belongs to two pages, and each
/// page holds its own half. Memory of positions that were never stored may contain anything,
/// including NaN. Vector loads may run up to `kPanel` units past the end of a page; `page_bytes`
/// includes room for that.
struct PageLayout {
  std::int64_t page_tokens = 0;
  std::int64_t head_dim = 0;
  DType dtype = DType::kF32;
  std::int64_t page_bytes = 0;

  PageLayout() = default;
  explicit PageLayout(const AttentionShape& shape)
      : page_tokens(shape.page_tokens), head_dim(shape.head_dim), dtype(shape.kv_dtype) {
    page_bytes = ((shape.num_kv_heads * head_units() + kPanel) * 4 + 63) / 64 * 64;
  }
  /// Returns the size of one kv head's keys in a page. Units: 4 bytes.
  [[nodiscard]] std::int64_t key_units() const noexcept {
    return (dtype == DType::kBF16 ? (head_dim + 1) / 2 : head_dim) * page_tokens;
  }
  /// Returns the size of one kv head's keys and values in a page. Units: 4 bytes.
  [[nodiscard]] std::int64_t head_units() const noexcept {
    return key_units() + (dtype == DType::kBF16 ? (page_tokens + 1) / 2 : page_tokens) * head_dim;
  }
};

/// Computes attention of consecutive tokens of one sequence over one kv head.
struct AttentionJob {
  PageLayout layout;
  const std::byte* cache = nullptr;  // the layer's pages
  const std::int32_t* pages = nullptr;
  std::int64_t kv_head = 0;
  std::int64_t ratio = 0;  // number of query heads that share the kv head
  std::int64_t window = 0;
  float scale = 0.0F;
  std::int64_t tokens = 0;
  std::int64_t first_position = 0;
  // Each pointer refers to the job's first token and the first of its `ratio` heads.
  const float* q = nullptr;
  std::int64_t q_stride = 0;
  float* out = nullptr;
  std::int64_t out_stride = 0;
  float* lse = nullptr;  // may be null
  std::int64_t lse_stride = 0;
  const AttentionJob* next = nullptr;  // the job that the caller runs next, to prefetch; or null
};

/// Computes the gradients of attention for one window of a sequence over one kv head.
struct AttentionBackwardJob {
  AttentionJob job;  // the window; its `out` and `lse` are not set
  std::int64_t tile_tokens = 0;
  const float* out = nullptr;  // result of the forward pass
  std::int64_t out_stride = 0;
  const float* lse = nullptr;
  std::int64_t lse_stride = 0;
  const float* dout = nullptr;
  std::int64_t dout_stride = 0;
  float* dq = nullptr;
  std::int64_t dq_stride = 0;
  // Gradients of position 0 at the kv head. The kernel adds to those of all positions that the
  // window sees.
  float* dk = nullptr;
  std::int64_t dk_stride = 0;
  float* dv = nullptr;
  std::int64_t dv_stride = 0;
};

/// Rows [first, end) of an operation or, if a kernel says so, columns [first, end).
struct RowRange {
  std::int64_t first = 0;
  std::int64_t end = 0;
};

/// Columns of a log-softmax that are summed in float lanes before the sum is added to a double.
/// This keeps the error of a row of any length near one rounding.
inline constexpr std::int64_t kSoftmaxBlock = 1024;

/// Holds the kernels of one instruction set.
/// Threads: concurrent calls on disjoint results are safe.
struct KernelTable {
  const char* isa = "";
  std::int64_t gradient_panel_width = 0;  // columns of a packed panel of `a`; see WeightGradientJob
  std::int64_t tile_panels = 3;           // panels in a tall tile of a product
  /// Bytes of panels that are transposed or expanded before a product reads them. They share the
  /// second-level cache with rows.
  std::int64_t made_panel_bytes = std::int64_t{192} * 1024;

  /// Execute `rounds` rounds of multiply-adds in registers. Return the number of operations.
  double (*peak_f32)(std::int64_t rounds) = nullptr;
  double (*peak_bf16)(std::int64_t rounds) = nullptr;
  /// Reads memory from front to back. The sum that it returns has no meaning.
  double (*read_bytes)(const std::byte* from, std::int64_t bytes) = nullptr;

  /// Return whether every element is finite. The check costs nothing, since packing is limited by
  /// memory reads.
  bool (*pack_f32)(const PackJob& job) = nullptr;
  bool (*pack_bf16)(const PackJob& job) = nullptr;
  void (*transpose_f32)(const TransposeJob& job) = nullptr;
  void (*transpose_bf16)(const TransposeJob& job) = nullptr;
  void (*product_f32)(const ProductJob& job) = nullptr;
  void (*product_bf16)(const ProductJob& job) = nullptr;
  void (*product_int8)(const ProductJob& job) = nullptr;
  /// Executes jobs one after the other.
  void (*low_rank)(const LowRankJob* jobs, std::int64_t count) = nullptr;
  /// Returns the number of panels in a tile of a product of `rows` rows. Work is divided in
  /// multiples of it.
  std::int64_t (*product_width)(std::int64_t rows) = nullptr;
  /// Rounds rows of x to bfloat16 as `product_bf16` reads them. Rows of `out` start `out_stride`
  /// elements of `rounded_bytes` bytes apart. An odd depth is padded with a zero.
  void (*round_to_bf16)(ConstMatrix x, RowRange rows, void* out, std::int64_t out_stride) = nullptr;
  std::int64_t rounded_bytes = 0;
  /// Does the same as `product_width`, for `product_int8`.
  std::int64_t (*product_width_int8)(std::int64_t rows) = nullptr;
  /// Rounds rows of x to blocks as `product_int8` reads them: x.cols values, then a float per block
  /// of 32, then a 32-bit integer per block. Rows of `out` start `out_stride` bytes apart.
  void (*round_to_int8)(ConstMatrix x, RowRange rows, void* out, std::int64_t out_stride) = nullptr;
  /// Builds float panels of B^T.
  void (*transpose_int8)(const TransposeJob& job) = nullptr;
  void (*expand_nf4)(const ExpandJob& job) = nullptr;
  /// Copies the columns `columns` of `from`, which start at a multiple of `width` <= 16, to panels
  /// of `width` columns and `from.rows` rows at `to`. The last panel is padded with zeros.
  void (*pack_panels)(ConstMatrix from, RowRange columns, std::int64_t width, float* to) = nullptr;
  void (*weight_gradient)(const WeightGradientJob& job) = nullptr;
  void (*low_rank_gradient)(const LowRankGradientJob& job) = nullptr;
  /// Transposes `from` (rows, cols) to `to` (cols, rows).
  void (*transpose_floats)(ConstMatrix from, Matrix to) = nullptr;
  /// Adds the rows of dy to dbias, for a range of columns.
  void (*bias_backward)(ConstMatrix dy, RowRange columns, float* dbias) = nullptr;

  void (*rms_norm)(ConstMatrix x, const float* gain, float eps, RowRange rows, Matrix out,
                   float* rstd) = nullptr;
  void (*rms_norm_backward)(ConstMatrix dout, ConstMatrix x, const float* gain, const float* rstd,
                            Store store, RowRange rows, Matrix dx) = nullptr;
  /// Adds the gradient of the gain to dgain, for a range of columns.
  void (*gain_backward)(ConstMatrix dout, ConstMatrix x, const float* rstd, RowRange columns,
                        float* dgain) = nullptr;
  void (*rope)(Matrix x, std::int64_t head_dim, const std::int32_t* positions,
               const RopeTables& tables, RopeDirection direction, RowRange rows) = nullptr;
  void (*swiglu)(ConstMatrix gate, ConstMatrix up, RowRange rows, Matrix out) = nullptr;
  void (*swiglu_backward)(ConstMatrix dout, ConstMatrix gate, ConstMatrix up, RowRange rows,
                          Matrix dgate, Matrix dup) = nullptr;
  void (*add_scaled)(ConstMatrix x, float factor, RowRange rows, Matrix y) = nullptr;
  void (*scale)(float factor, RowRange rows, Matrix x) = nullptr;
  void (*scale_columns)(ConstMatrix x, const float* factors, const float* bias, Store store,
                        RowRange rows, Matrix out) = nullptr;
  /// Convert rows to and from consecutive rows of bfloat16.
  void (*narrow)(ConstMatrix x, RowRange rows, std::uint16_t* out) = nullptr;
  void (*widen)(const std::uint16_t* x, RowRange rows, Matrix out) = nullptr;
  void (*adamw)(const AdamWFactors<float>& factors, const AdamWTensor<float>& tensor) = nullptr;
  /// Adds the rows of dout * x to dfactors, for a range of columns.
  void (*scale_columns_backward)(ConstMatrix dout, ConstMatrix x, RowRange columns,
                                 float* dfactors) = nullptr;

  void (*log_softmax_gather)(ConstMatrix logits, const std::int32_t* targets, float inv_temperature,
                             RowRange rows, float* logprobs, float* entropies) = nullptr;
  void (*log_softmax_backward)(Matrix logits, const std::int32_t* targets, float inv_temperature,
                               const float* dlogprobs, const float* dentropies,
                               RowRange rows) = nullptr;
  /// Do the parts of `log_softmax_gather` for one row that workers divide. `log_softmax_top`
  /// returns the largest of logits * inv_temperature in some columns. `log_softmax_sums` stores for
  /// each of some blocks of `kSoftmaxBlock` columns the sum of exp(z - top), and of
  /// exp(z - top) (z - top).
  float (*log_softmax_top)(const float* row, RowRange columns, float inv_temperature) = nullptr;
  void (*log_softmax_sums)(const float* row, std::int64_t cols, float inv_temperature, float top,
                           RowRange blocks, float* sums, float* products) = nullptr;

  MassKernels masses;

  /// Return the scratch memory that the attention kernels need for a job. Units: floats.
  std::int64_t (*attention_scratch)(const AttentionJob& job) = nullptr;
  std::int64_t (*attention_backward_scratch_f32)(const AttentionBackwardJob& job) = nullptr;
  std::int64_t (*attention_backward_scratch_bf16)(const AttentionBackwardJob& job) = nullptr;
  void (*attention_f32)(const AttentionJob& job, float* scratch) = nullptr;
  void (*attention_bf16)(const AttentionJob& job, float* scratch) = nullptr;
  void (*attention_backward_f32)(const AttentionBackwardJob& job, float* scratch) = nullptr;
  void (*attention_backward_bf16)(const AttentionBackwardJob& job, float* scratch) = nullptr;
};

// The build has one table per instruction set. `choose_kernels` selects one.
namespace isa_baseline {
[[nodiscard]] const KernelTable& kernels() noexcept;
}
namespace isa_avx2 {
[[nodiscard]] const KernelTable& kernels() noexcept;
}
namespace isa_avx512 {
[[nodiscard]] const KernelTable& kernels() noexcept;
}
/// The AVX-512 kernels, except those that multiply bfloat16 pairs or blocks.
namespace isa_avx512_bf16 {
[[nodiscard]] const KernelTable& kernels() noexcept;
}
/// Those of AVX-512 BF16, with products of bfloat16 in tile registers.
namespace isa_amx {
[[nodiscard]] const KernelTable& kernels() noexcept;
}

}  // namespace tidemill::engines::cpu
