// SPDX-License-Identifier: Apache-2.0
// Linear layers of the CPU backend.
#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.hpp"
#include "engines/ops/cpu/cpu_ops.hpp"
#include "engines/ops/cpu/factory.hpp"
#include "engines/ops/cpu/product_cuts.hpp"
#include "engines/ops/shapes.hpp"
#include "engines/ops/weight_elements.hpp"

namespace tidemill::engines::cpu {
namespace {

// With fewer rows per worker, columns are divided among the workers instead of rows, so that each
// panel of the weight is read once.
constexpr std::int64_t kRowsPerWorker = 64;
// The backward direction transposes a weight of at most this size, such as that of an adapter, as a
// whole, and divides the rows among the workers.
constexpr std::int64_t kSmallWeightBytes = std::int64_t{1} << 20U;
// A weight gradient with at most this many rows or columns is computed without packing.
constexpr std::int64_t kMaxLowRank = 64;
// Size of a packed block of columns of dy. It stays in the second-level cache while the columns of
// x are streamed.
constexpr std::int64_t kGradientBlockBytes = std::int64_t{512} * 1024;

const PanelWeight& own(const PreparedWeight& weight) {
  const auto* mine = dynamic_cast<const PanelWeight*>(&weight);
  TIDEMILL_CHECK(mine != nullptr) << "the weight belongs to another backend";
  return *mine;
}

std::int64_t padded(std::int64_t cols, std::int64_t width) {
  return (cols + width - 1) / width * width;
}

// Returns whether rows of floats are copied to addresses that do not share cache sets. The rows are
// few enough that copying them costs less than reading the weight, and every row then uses each
// panel while it is in cache.
bool should_copy_spread(ConstMatrix x, std::int64_t out_features) {
  constexpr std::int64_t kFewRows = 16;
  constexpr std::int64_t kKilobyte = 1024 / sizeof(float);
  return x.rows > 1 && x.rows <= kFewRows && out_features > kMaxLowRank &&
         x.stride % kKilobyte == 0;
}

}  // namespace

Result<std::unique_ptr<PreparedWeight>> CpuOps::prepare_weight(const WeightView& weight,
                                                               DType compute, WeightUse use) {
  return replace_weight(nullptr, weight, compute, use);
}

Result<std::unique_ptr<PreparedWeight>> CpuOps::replace_weight(std::unique_ptr<PreparedWeight> old,
                                                               const WeightView& weight,
                                                               WeightRows rows, DType compute,
                                                               WeightUse /*use*/) {
  check_weight(weight);
  TIDEMILL_RETURN_IF_ERROR(check_preparable(weight, compute));
  const std::int64_t size =
      PanelShape{weight.in_features, weight.out_features, compute}.size_bytes();
  std::optional<WeightBytes> memory;
  bool finite = true;  // the rows before `rows`
  if (old != nullptr && own(*old).size_bytes() == size) {
    memory = own(*old).memory();
    finite = rows.first == 0 || own(*old).seen_finite();
  }
  old.reset();
  if (!memory.has_value()) {
    TIDEMILL_CHECK(rows.first == 0) << "the rows before " << rows.first << " are not in `old`";
    memory = weight_memory_.allocate(size);
  }
  TIDEMILL_ASSIGN_OR_RETURN(
      std::unique_ptr<PanelWeight> panels,
      PanelWeight::create(weight, rows, compute, kernels_, *std::move(memory), team_));
  panels->add_seen(finite);
  return std::unique_ptr<PreparedWeight>(std::move(panels));
}

CpuOps::ProductRows CpuOps::product_rows(ConstMatrix x, DType dtype, std::int64_t out_features) {
  ProductRows rows{x.data, x.stride};
  if (dtype != DType::kF32) {
    const bool bf16 = dtype == DType::kBF16;
    const auto round = bf16 ? kernels_.round_to_bf16 : kernels_.round_to_int8;
    rows.stride = bf16 ? spread_stride(x.cols, kernels_.rounded_bytes) : x.cols + x.cols / 32 * 8;
    auto* rounded = rounded_.bytes(x.rows * rows.stride * (bf16 ? kernels_.rounded_bytes : 1));
    team_.parallel_for(x.rows, x.cols / 2, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
      round(x, {begin, end}, rounded, rows.stride);
    });
    rows.x = rounded;
  } else if (should_copy_spread(x, out_features)) {
    rows.stride = spread_stride(x.cols, sizeof(float));
    float* copy = rounded_.floats(x.rows * rows.stride);
    for (std::int64_t t = 0; t < x.rows; ++t) {
      std::copy_n(x.row(t), x.cols, copy + t * rows.stride);
    }
    rows.x = copy;
  }
  return rows;
}

ProductJob CpuOps::product_of(const ProductRows& rows, std::int64_t depth,
                              std::span<const float> bias, Store store, Matrix y) {
  ProductJob job;
  job.x = rows.x;
  job.x_stride = rows.stride;
  job.rows = y.rows;
  job.depth = depth;
  job.cols = y.cols;
  job.bias = bias.empty() ? nullptr : bias.data();
  job.store = store;
  job.y = y.data;
  job.y_stride = y.stride;
  return job;
}

namespace {

// The kernels for weights of one type.
struct Products {
  void (*product)(const ProductJob& job);
  void (*transpose)(const TransposeJob& job);
  std::int64_t (*width)(std::int64_t rows);
  std::int64_t x_bytes;  // size of one element of the rows that `product` takes
};

Products products_of(const KernelTable& kernels, DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return {kernels.product_bf16, kernels.transpose_bf16, kernels.product_width,
              kernels.rounded_bytes};
    case DType::kBlockI8:
      return {kernels.product_int8, kernels.transpose_int8, kernels.product_width_int8, 1};
    default: return {kernels.product_f32, kernels.transpose_f32, kernels.product_width, 4};
  }
}

// Returns the job for rows [first, end) of a product.
ProductJob rows_of(ProductJob job, std::int64_t x_bytes, std::int64_t first, std::int64_t end) {
  job.x = static_cast<const std::byte*>(job.x) + first * job.x_stride * x_bytes;
  job.y += first * job.y_stride;
  job.rows = end - first;
  return job;
}

}  // namespace

void CpuOps::multiply(const ProductJob& whole, const PanelWeight& weight,
                      std::int64_t first_panel) {
  const Products products = products_of(kernels_, weight.dtype());
  const auto kernel = products.product;
  const PanelShape& shape = weight.shape();
  const std::byte* const data = weight.data() + first_panel * shape.panel_bytes();
  const std::int64_t panels = panels_for(whole.cols);
  const std::int64_t width = products.width(whole.rows);
  const std::int64_t groups = (panels + width - 1) / width;
  if (whole.rows >= kRowsPerWorker * team_.size() || groups < std::int64_t{2} * team_.size()) {
    ProductJob all = whole;
    all.panels = data;
    all.panel_stride = shape.panel_elements();
    team_.parallel_for(whole.rows, whole.depth * whole.cols / kRate,
                       [&](std::int64_t, std::int64_t begin, std::int64_t end) {
                         kernel(rows_of(all, products.x_bytes, begin, end));
                       });
    return;
  }
  // For the cost estimate, reading a panel counts as much as multiplying six rows by it.
  team_.parallel_for(
      groups, whole.depth * (whole.rows + 6) * width * kPanel / kRate,
      [&](std::int64_t, std::int64_t begin, std::int64_t end) {
        kernel(panels_of(whole, begin * width, std::min(end * width, panels),
                         data + begin * width * shape.panel_bytes(), shape.panel_elements()));
      });
}

void CpuOps::linear_group(ConstMatrix x, std::span<const LinearTerm> terms, Store store) {
  std::int64_t max_features = 0;
  for (const LinearTerm& term : terms) {
    const PanelWeight& weight = own(*term.weight);
    check_linear(x, weight, term);
    max_features = std::max(max_features, weight.out_features());
  }
  if (x.rows == 0) {
    return;
  }
  std::optional<DType> rounded_to;
  ProductRows rows;
  for (const LinearTerm& term : terms) {
    const PanelWeight& weight = own(*term.weight);
    const bool nf4 = weight.dtype() == DType::kNf4;
    const DType operand = nf4 ? DType::kBF16 : weight.dtype();
    if (rounded_to != operand) {
      rows = product_rows(x, operand, max_features);
      rounded_to = operand;
    }
    const ProductJob whole = product_of(rows, x.cols, term.bias, store, term.y);
    if (nf4) {
      multiply_nf4(whole, weight, term.first_output / kPanel);
    } else {
      multiply(whole, weight, term.first_output / kPanel);
    }
  }
}

void CpuOps::linear_backward_input(ConstMatrix dy, const PreparedWeight& weight,
                                   std::int64_t first_input, Store store, Matrix dx) {
  const PanelWeight& w = own(weight);
  check_linear_backward_input(dy, w, first_input, dx);
  if (dx.rows == 0) {
    return;
  }
  if (w.dtype() == DType::kNf4) {
    linear_backward_input_nf4(dy, w, first_input, store, dx);
    return;
  }
  // Transposing int8 blocks widens them to floats: gradients are not rounded to blocks.
  const bool bf16 = w.dtype() == DType::kBF16;
  const auto kernel = bf16 ? kernels_.product_bf16 : kernels_.product_f32;
  const auto transpose = products_of(kernels_, w.dtype()).transpose;
  const ProductRows rows = product_rows(dy, bf16 ? DType::kBF16 : DType::kF32, dx.cols);
  const ProductJob whole = product_of(rows, dy.cols, {}, store, dx);
  const std::int64_t panels = panels_for(dx.cols);
  const std::int64_t transposed_elements = w.shape().num_panels() * kPanel * kPanel;
  const std::int64_t transposed_bytes = transposed_elements * (bf16 ? 2 : 4);
  const auto make = [&](std::int64_t first, std::int64_t end, std::byte* out) {
    transpose({.shape = w.shape(),
               .panels = w.data(),
               .first_panel = first_input / kPanel + first,
               .num_panels = end - first,
               .out = out,
               .out_stride = transposed_elements});
  };
  if (panels * transposed_bytes <= kSmallWeightBytes && dx.rows >= kRowsPerWorker * team_.size()) {
    std::byte* transposed = packed_.bytes(panels * transposed_bytes);
    make(0, panels, transposed);
    const ProductJob all = panels_of(whole, 0, panels, transposed, transposed_elements);
    team_.parallel_for(dx.rows, dy.cols * dx.cols / kRate,
                       [&](std::int64_t, std::int64_t begin, std::int64_t end) {
                         kernel(rows_of(all, bf16 ? kernels_.rounded_bytes : 4, begin, end));
                       });
    return;
  }
  const std::int64_t width = panels_made_at_once(panels, transposed_bytes, team_.size(), kernels_);
  const std::int64_t groups = (panels + width - 1) / width;
  team_.parallel_for(groups, dy.cols * (dx.rows + 6) * width * kPanel / kRate,
                     [&](std::int64_t part, std::int64_t begin, std::int64_t end) {
                       std::byte* transposed = team_.scratch(part).bytes(width * transposed_bytes);
                       for (std::int64_t group = begin; group < end; ++group) {
                         const std::int64_t first = group * width;
                         const std::int64_t last = std::min(first + width, panels);
                         make(first, last, transposed);
                         kernel(panels_of(whole, first, last, transposed, transposed_elements));
                       }
                     });
}

void CpuOps::low_rank_backward_weight(ConstMatrix a, ConstMatrix b, Matrix out) {
  const std::int64_t columns = 6 * kPanel;
  const std::int64_t items = (b.cols + columns - 1) / columns;
  team_.parallel_for(items, b.rows * a.cols * columns / kRate,
                     [&](std::int64_t, std::int64_t begin, std::int64_t end) {
                       kernels_.low_rank_gradient({.a = a,
                                                   .b = b,
                                                   .first = begin * columns,
                                                   .end = std::min(end * columns, b.cols),
                                                   .out = out});
                     });
}

void CpuOps::linear_backward_weight(ConstMatrix dy, ConstMatrix x, Matrix dw) {
  check_linear_backward_weight(dy, x, dw);
  if (dy.cols <= kMaxLowRank) {
    low_rank_backward_weight(dy, x, dw);
    return;
  }
  if (x.cols <= kMaxLowRank) {
    // dw^T = x^T dy has the same sums. It is accumulated in a transposed copy.
    const Matrix transposed{packed_.floats(x.cols * dy.cols), x.cols, dy.cols, dy.cols};
    kernels_.transpose_floats(dw, transposed);
    low_rank_backward_weight(x, dy, transposed);
    kernels_.transpose_floats(transposed, dw);
    return;
  }
  const std::int64_t step = std::clamp<std::int64_t>(x.rows, 1, kCpuWeightGradientRows);
  const std::int64_t width = kernels_.gradient_panel_width;
  const std::int64_t panels = (dy.cols + width - 1) / width;
  const std::int64_t fitting = std::max<std::int64_t>(1, kGradientBlockBytes / (step * width * 4));
  const std::int64_t blocks = std::clamp<std::int64_t>(
      (panels + fitting - 1) / fitting, std::min<std::int64_t>(panels, team_.size()), panels);
  const auto column_of = [&](std::int64_t block) {
    return std::min(panels * block / blocks * width, dy.cols);
  };
  // Packing stores whole vectors, which may run past the last panel.
  const std::int64_t block_floats = ((panels + blocks - 1) / blocks) * width * step + kPanel;
  float* b = packed_.floats(padded(x.cols, kPanel) * step + kPanel);
  for (std::int64_t first = 0; first < x.rows; first += step) {
    const std::int64_t rows = std::min(step, x.rows - first);
    const ConstMatrix dy_rows = dy.slice_rows(first, rows);
    const ConstMatrix x_rows = x.slice_rows(first, rows);
    team_.parallel_for(panels_for(x.cols), rows * kPanel / 4,
                       [&](std::int64_t, std::int64_t begin, std::int64_t end) {
                         const RowRange columns{begin * kPanel, std::min(end * kPanel, x.cols)};
                         kernels_.pack_panels(x_rows, columns, kPanel, b + columns.first * rows);
                       });
    team_.parallel_for(blocks, rows * dy.cols * x.cols / blocks / kRate,
                       [&](std::int64_t part, std::int64_t begin, std::int64_t end) {
                         float* a = team_.scratch(part).floats(block_floats);
                         for (std::int64_t block = begin; block < end; ++block) {
                           const RowRange columns{column_of(block), column_of(block + 1)};
                           kernels_.pack_panels(dy_rows, columns, width, a);
                           kernels_.weight_gradient(
                               {.a_panels = a,
                                .b_panels = b,
                                .depth = rows,
                                .out = dw.slice_rows(columns.first, columns.end - columns.first)});
                         }
                       });
  }
}

void CpuOps::bias_backward(ConstMatrix dy, std::span<float> dbias) {
  check_bias_backward(dy, dbias);
  team_.parallel_for(
      panels_for(dy.cols), 2 * dy.rows, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
        kernels_.bias_backward(dy, {begin * kPanel, std::min(end * kPanel, dy.cols)}, dbias.data());
      });
}

}  // namespace tidemill::engines::cpu
