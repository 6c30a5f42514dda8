// SPDX-License-Identifier: Apache-2.0
// The inner loops of the CPU backend: one table of functions for each instruction set.
//
// A job is one worker's share of an operation. How the work is cut into jobs never changes a bit:
// each element of a result is made by one fixed chain of operations.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engines/ops/matrix.hpp"
#include "engines/ops/ops.hpp"

namespace tidemill::engines::cpu {

/// Columns of one panel of a packed matrix.
inline constexpr std::int64_t kPanel = 16;

/// Returns how many panels hold `cols` columns.
[[nodiscard]] constexpr std::int64_t panels_for(std::int64_t cols) noexcept {
  return (cols + kPanel - 1) / kPanel;
}

/// Where the parts of block `block` (32 features) begin in an int8 panel, in bytes: 512 values and
/// 16 halves. Two blocks share a cache line of scales, so that a panel is one stream of lines.
[[nodiscard]] constexpr std::int64_t int8_values_at(std::int64_t block) noexcept {
  return block / 2 * (64 + 1024) + 64 + block % 2 * 512;
}
[[nodiscard]] constexpr std::int64_t int8_scales_at(std::int64_t block) noexcept {
  return block / 2 * (64 + 1024) + block % 2 * 32;
}

/// The shape of packed panels: a matrix B (depth x cols). See panels.hpp.
struct PanelShape {
  std::int64_t depth = 0;
  std::int64_t cols = 0;
  /// kF32, kBF16, kBlockI8 (depth is then a multiple of 32) or kNf4 (of 64).
  DType dtype = DType::kF32;

  [[nodiscard]] constexpr std::int64_t num_panels() const noexcept { return panels_for(cols); }
  /// Returns the elements of one panel, a padded depth included; of blocks its bytes: of
  /// kBlockI8 a byte for each weight and a half for each block of 32, of kNf4 half a byte for each
  /// weight and a byte for each block of 64.
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
  /// Returns how many floats blocks of kNf4 share: one for each 256, counted row after row of W,
  /// and their offset. They lie behind the last panel.
  [[nodiscard]] constexpr std::int64_t num_shared() const noexcept {
    return dtype == DType::kNf4 ? (cols * (depth / 64) + 255) / 256 + 1 : 0;
  }
  [[nodiscard]] constexpr std::int64_t size_bytes() const noexcept {
    return num_panels() * panel_bytes() + num_shared() * 4;
  }
};

/// Packs up to 16 rows of W, each `depth` long, as one panel. Elements are of the panel's type.
struct PackJob {
  const void* rows = nullptr;
  std::int64_t row_stride = 0;  // elements
  std::int64_t num_rows = 0;
  std::int64_t depth = 0;
  void* panel = nullptr;
};

/// Makes `num_panels` panels of B^T (`shape.cols` deep) from the panels of B: those of its columns
/// from 16 * `first_panel` on. Rows past `shape.cols` are written too, up to a multiple of 16.
struct TransposeJob {
  PanelShape shape;  // of B
  const void* panels = nullptr;
  std::int64_t first_panel = 0;
  std::int64_t num_panels = 0;
  void* out = nullptr;
  std::int64_t out_stride = 0;  // elements between the panels made
};

/// Makes bfloat16 panels, `num_rows` deep, of the panels of B (kNf4) from `first_panel` on: of its
/// rows [first_row, first_row + num_rows), both multiples of 16. What lies past the columns is 0.
struct ExpandJob {
  PanelShape shape;                       // of B
  const std::byte* panels = nullptr;      // all of them, and what blocks share
  const float* scale_values = nullptr;    // 256: see base/block_nf4.hpp
  const float* element_values = nullptr;  // 16
  std::int64_t first_panel = 0;
  std::int64_t num_panels = 0;
  std::int64_t first_row = 0;
  std::int64_t num_rows = 0;
  std::uint16_t* out = nullptr;  // panels of num_rows * 16 elements, one behind the other
};

/// y = or += x B + bias, for the columns of consecutive panels of B.
///
/// Every element is one chain of multiply-adds over the depth, from 0 upwards, to which the bias
/// and then the old value of y are added. The depth is at least 1.
struct ProductJob {
  /// Rows of floats, or as `round_to_bf16` and `round_to_int8` write them.
  const void* x = nullptr;
  std::int64_t x_stride = 0;  // elements; of rounded blocks, bytes
  std::int64_t rows = 0;
  std::int64_t depth = 0;
  const void* panels = nullptr;
  std::int64_t panel_stride = 0;  // elements
  std::int64_t cols = 0;          // of y: those of the panels given
  const float* bias = nullptr;    // `cols`, or null
  Store store = Store::kOverwrite;
  float* y = nullptr;
  std::int64_t y_stride = 0;
};

/// y += scale * ((x A^T) B^T) + c for a few rows. A and B are float panels, of `rank` and `cols`
/// outputs.
///
/// Every element of u = x A^T is one chain of multiply-adds from 0 upwards, as that of
/// `ProductJob`; it is scaled, and the same is done with B, c and y.
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
  float* u = nullptr;  // scratch: a row of whole panels of `rank` for each of 8 rows
};

/// out (a.cols x b.cols) += a^T b, row after row.
///
/// Both operands are packed: a in panels of `KernelTable::outer_rows` columns, b in panels of 16,
/// each panel `depth` rows long.
struct OuterJob {
  const float* a_panels = nullptr;
  const float* b_panels = nullptr;
  std::int64_t depth = 0;
  Matrix out;
};

/// out (a.cols x b.cols) += a^T b for the columns [first, end) of b and out, row after row. Meant
/// for few columns of a: nothing is packed.
struct ThinOuterJob {
  ConstMatrix a;
  ConstMatrix b;
  std::int64_t first = 0;
  std::int64_t end = 0;
  Matrix out;
};

/// The shape of one layer's cache as kernels walk it.
///
/// It is made of units of 4 bytes: floats, or pairs of bfloat16 whose first element is the low
/// half. A page holds, for each kv head, its keys transposed (lanes are positions) and then its
/// values (lanes are features):
///   kF32   keys head_dim x page_tokens, values page_tokens x head_dim;
///   kBF16  pairs of features i, i + 1 (i even; of an odd head_dim the last is paired with zeros) x
///          page_tokens, pairs of positions p, p + 1 (p even) x head_dim.
/// A page of an odd number of tokens shares a pair with its neighbour: each holds its own half.
/// What no position was stored to may hold anything, NaN included. The last loads of a page may run
/// `kPanel` units past it, which `page_bytes` allows for.
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
  /// Returns the units of one kv head's keys in a page.
  [[nodiscard]] std::int64_t key_units() const noexcept {
    return (dtype == DType::kBF16 ? (head_dim + 1) / 2 : head_dim) * page_tokens;
  }
  /// Returns the units of one kv head in a page.
  [[nodiscard]] std::int64_t head_units() const noexcept {
    return key_units() + (dtype == DType::kBF16 ? (page_tokens + 1) / 2 : page_tokens) * head_dim;
  }
};

/// Attention of consecutive tokens of one sequence over one kv head.
struct AttentionJob {
  PageLayout layout;
  const std::byte* cache = nullptr;  // the layer's pages
  const std::int32_t* pages = nullptr;
  std::int64_t kv_head = 0;
  std::int64_t ratio = 0;  // query heads that share the kv head
  std::int64_t window = 0;
  float scale = 0.0F;
  std::int64_t tokens = 0;
  std::int64_t first_position = 0;
  // Each begins at the job's first token and at the first of the `ratio` heads.
  const float* q = nullptr;
  std::int64_t q_stride = 0;
  float* out = nullptr;
  std::int64_t out_stride = 0;
  float* lse = nullptr;  // may be null
  std::int64_t lse_stride = 0;
  const AttentionJob* next = nullptr;  // what the caller asks for next, or null
};

/// The gradients of one window of a sequence over one kv head.
struct AttentionBackwardJob {
  AttentionJob job;  // the window, without results
  std::int64_t tile_tokens = 0;
  const float* out = nullptr;  // what the forward pass gave
  std::int64_t out_stride = 0;
  const float* lse = nullptr;
  std::int64_t lse_stride = 0;
  const float* dout = nullptr;
  std::int64_t dout_stride = 0;
  float* dq = nullptr;
  std::int64_t dq_stride = 0;
  // Of position 0, at the kv head; what the window sees of them is added to.
  float* dk = nullptr;
  std::int64_t dk_stride = 0;
  float* dv = nullptr;
  std::int64_t dv_stride = 0;
};

/// One operation on rows [first, end) or, where said, on columns [first, end).
struct RowRange {
  std::int64_t first = 0;
  std::int64_t end = 0;
};

/// The kernels of one instruction set. Threads: concurrent calls on disjoint results are safe.
struct KernelTable {
  const char* isa = "";
  std::int64_t outer_rows = 0;

  /// Multiply-adds on registers, for `rounds` rounds; returns how many operations that was.
  double (*peak_f32)(std::int64_t rounds) = nullptr;
  double (*peak_bf16)(std::int64_t rounds) = nullptr;
  /// Reads memory front to back; returns a sum that means nothing.
  double (*read_bytes)(const std::byte* from, std::int64_t bytes) = nullptr;

  /// Return whether every element is finite, which costs nothing beside the reading.
  bool (*pack_f32)(const PackJob& job) = nullptr;
  bool (*pack_bf16)(const PackJob& job) = nullptr;
  void (*transpose_f32)(const TransposeJob& job) = nullptr;
  void (*transpose_bf16)(const TransposeJob& job) = nullptr;
  void (*product_f32)(const ProductJob& job) = nullptr;
  void (*product_bf16)(const ProductJob& job) = nullptr;
  void (*product_int8)(const ProductJob& job) = nullptr;
  /// Does jobs one after the other.
  void (*low_rank)(const LowRankJob* jobs, std::int64_t count) = nullptr;
  /// Returns how many panels a product of `rows` rows works on side by side: what work is shared
  /// out in multiples of.
  std::int64_t (*product_width)(std::int64_t rows) = nullptr;
  /// Rounds rows of x to bfloat16 as `product_bf16` reads them, `out_stride` elements of
  /// `rounded_bytes` apart; an odd depth is padded with a zero.
  void (*round_to_bf16)(ConstMatrix x, RowRange rows, void* out, std::int64_t out_stride) = nullptr;
  std::int64_t rounded_bytes = 0;
  /// The same of `product_int8`.
  std::int64_t (*product_width_int8)(std::int64_t rows) = nullptr;
  /// Rounds rows of x to blocks as `product_int8` reads them: x.cols values, a float and a 32-bit
  /// number for each 32 of them; rows are `out_stride` bytes apart.
  void (*round_to_int8)(ConstMatrix x, RowRange rows, void* out, std::int64_t out_stride) = nullptr;
  /// Makes float panels of B^T.
  void (*transpose_int8)(const TransposeJob& job) = nullptr;
  void (*expand_nf4)(const ExpandJob& job) = nullptr;
  /// Copies columns of `from`, from a multiple of `width` <= 16 on, to panels of `width` columns,
  /// `from.rows` rows long, the last one padded with zeros. `to` is the place of the first of them.
  void (*pack_panels)(ConstMatrix from, RowRange columns, std::int64_t width, float* to) = nullptr;
  void (*outer_product)(const OuterJob& job) = nullptr;
  void (*thin_outer_product)(const ThinOuterJob& job) = nullptr;
  /// to (cols, rows) = from (rows, cols) across.
  void (*transpose_floats)(ConstMatrix from, Matrix to) = nullptr;
  /// Adds rows of dy to dbias, columns of the range.
  void (*bias_backward)(ConstMatrix dy, RowRange columns, float* dbias) = nullptr;

  void (*rms_norm)(ConstMatrix x, const float* gain, float eps, RowRange rows, Matrix out,
                   float* rstd) = nullptr;
  void (*rms_norm_backward)(ConstMatrix dout, ConstMatrix x, const float* gain, const float* rstd,
                            Store store, RowRange rows, Matrix dx) = nullptr;
  /// Adds to dgain, columns of the range.
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
  /// Rows of numbers rounded to bfloat16, one behind the other.
  void (*narrow)(ConstMatrix x, RowRange rows, std::uint16_t* out) = nullptr;
  void (*widen)(const std::uint16_t* x, RowRange rows, Matrix out) = nullptr;
  void (*adamw)(const AdamWFactors<float>& factors, const AdamWTensor<float>& tensor) = nullptr;
  /// Adds to dfactors, columns of the range.
  void (*scale_columns_backward)(ConstMatrix dout, ConstMatrix x, RowRange columns,
                                 float* dfactors) = nullptr;

  void (*log_softmax_gather)(ConstMatrix logits, const std::int32_t* targets, float inv_temperature,
                             RowRange rows, float* logprobs, float* entropies) = nullptr;
  void (*log_softmax_backward)(Matrix logits, const std::int32_t* targets, float inv_temperature,
                               const float* dlogprobs, const float* dentropies,
                               RowRange rows) = nullptr;

  /// Returns the floats of scratch that the attention kernels need for a job.
  std::int64_t (*attention_scratch)(const AttentionJob& job) = nullptr;
  std::int64_t (*attention_backward_scratch_f32)(const AttentionBackwardJob& job) = nullptr;
  std::int64_t (*attention_backward_scratch_bf16)(const AttentionBackwardJob& job) = nullptr;
  void (*attention_f32)(const AttentionJob& job, float* scratch) = nullptr;
  void (*attention_bf16)(const AttentionJob& job, float* scratch) = nullptr;
  void (*attention_backward_f32)(const AttentionBackwardJob& job, float* scratch) = nullptr;
  void (*attention_backward_bf16)(const AttentionBackwardJob& job, float* scratch) = nullptr;
};

// One table per instruction set of the build; `choose_kernels` picks.
namespace isa_baseline {
[[nodiscard]] const KernelTable& kernels() noexcept;
}
namespace isa_avx2 {
[[nodiscard]] const KernelTable& kernels() noexcept;
}
namespace isa_avx512 {
[[nodiscard]] const KernelTable& kernels() noexcept;
}
/// The AVX-512 kernels, but for products of bfloat16 pairs and of blocks.
namespace isa_avx512_bf16 {
[[nodiscard]] const KernelTable& kernels() noexcept;
}

}  // namespace tidemill::engines::cpu
