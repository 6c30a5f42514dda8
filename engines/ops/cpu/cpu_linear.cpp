// SPDX-License-Identifier: Apache-2.0
// Linear layers of the CPU backend.
#include <algorithm>
#include <utility>

#include "base/check.hpp"
#include "engines/ops/cpu/cpu_ops.hpp"
#include "engines/ops/shapes.hpp"
#include "engines/ops/weight_elements.hpp"

namespace tidemill::engines::cpu {
namespace {

// Multiply-adds per cycle of one core, roughly: what costs are estimated with.
constexpr std::int64_t kRate = 16;
// Below this many rows per worker the columns are shared out, so that each weight is read once.
constexpr std::int64_t kRowsPerWorker = 64;
// Rows packed at once for a weight gradient, and rows between two visits of its accumulators.
constexpr std::int64_t kOuterBlock = 1024;
constexpr std::int64_t kOuterStep = 128;

const PackedWeight& own(const PreparedWeight& weight) {
  const auto* mine = dynamic_cast<const PackedWeight*>(&weight);
  TIDEMILL_CHECK(mine != nullptr) << "a weight of another backend";
  return *mine;
}

std::int64_t padded(std::int64_t cols, std::int64_t width) {
  return (cols + width - 1) / width * width;
}

}  // namespace

LinearOperand CpuOps::prepare_operand(const WeightView& weight, DType compute,
                                      Direction direction) {
  LinearOperand operand;
  if (onednn_ != nullptr) {
    operand.onednn =
        onednn_->pack(weight, compute,
                      direction == Direction::kForward ? OneDnnMatmul::Side::kTransposed
                                                       : OneDnnMatmul::Side::kPlain);
  }
  if (operand.onednn == nullptr) {
    operand.builtin = pack_matrix(weight, compute, direction, team_);
  }
  return operand;
}

Result<std::unique_ptr<PreparedWeight>> CpuOps::prepare_weight(const WeightView& weight,
                                                               DType compute, WeightUse use) {
  check_weight(weight);
  TIDEMILL_RETURN_IF_ERROR(check_weight_types(weight.dtype, compute));
  auto packed = std::make_unique<PackedWeight>(weight.out_features, weight.in_features, compute);
  packed->forward = prepare_operand(weight, compute, Direction::kForward);
  if (use == WeightUse::kForwardAndBackward) {
    packed->backward = prepare_operand(weight, compute, Direction::kBackward);
  }
  return std::unique_ptr<PreparedWeight>(std::move(packed));
}

void CpuOps::multiply(ConstMatrix x, const LinearOperand& operand, DType compute,
                      std::span<const float> bias, Store store, Matrix y) {
  if (y.rows == 0) {
    return;
  }
  const float* bias_data = bias.empty() ? nullptr : bias.data();
  if (operand.onednn != nullptr) {
    onednn_->multiply(x, *operand.onednn, bias_data, store, y);
    return;
  }
  const PackedMatrix& b = operand.builtin;
  if (compute == DType::kBF16) {
    float* rounded = rounded_.floats(x.rows * x.cols);
    team_.share(x.rows, x.cols / 4, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
      kernels_.round_to_bf16(x, {begin, end}, rounded);
    });
    x = {rounded, x.rows, x.cols, x.cols};
  }
  const auto kernel = compute == DType::kBF16 ? kernels_.product_bf16 : kernels_.product_f32;
  const std::int64_t panels = panels_for(b.cols);
  ProductJob whole;
  whole.x = x;
  whole.panels = b.panels.data();
  whole.end_panel = panels;
  whole.bias = bias_data;
  whole.store = store;
  whole.y = y;
  if (y.rows >= kRowsPerWorker * team_.size() || panels < 2 * team_.size()) {
    team_.share(y.rows, b.depth * b.cols / kRate,
                [&](std::int64_t, std::int64_t begin, std::int64_t end) {
                  ProductJob job = whole;
                  job.x = x.slice_rows(begin, end - begin);
                  job.y = y.slice_rows(begin, end - begin);
                  kernel(job);
                });
  } else {
    // Few rows: reading the panel takes about as long as multiplying six rows by it.
    team_.share(panels, b.depth * (y.rows + 6) * kPanel / kRate,
                [&](std::int64_t, std::int64_t begin, std::int64_t end) {
                  ProductJob job = whole;
                  job.first_panel = begin;
                  job.end_panel = end;
                  kernel(job);
                });
  }
}

void CpuOps::linear(ConstMatrix x, const PreparedWeight& weight, std::span<const float> bias,
                    Store store, Matrix y) {
  const PackedWeight& w = own(weight);
  check_linear(x, w.in_features(), w.out_features(), bias, y);
  multiply(x, w.forward, w.compute(), bias, store, y);
}

void CpuOps::linear_backward_input(ConstMatrix dy, const PreparedWeight& weight, Store store,
                                   Matrix dx) {
  const PackedWeight& w = own(weight);
  TIDEMILL_CHECK(w.backward.builtin.cols > 0 || w.backward.onednn != nullptr)
      << "prepared for forward alone";
  check_linear(dy, w.out_features(), w.in_features(), {}, dx);
  multiply(dy, w.backward, w.compute(), {}, store, dx);
}

void CpuOps::linear_backward_weight(ConstMatrix dy, ConstMatrix x, Matrix dw) {
  check_linear_backward_weight(dy, x, dw);
  const std::int64_t a_width = kernels_.outer_rows;
  // Packed steps lie one behind the other, each with the spare lanes that packing needs.
  const std::int64_t a_step = padded(dy.cols, a_width) * kOuterStep + kPanel;
  const std::int64_t b_step = padded(x.cols, kPanel) * kOuterStep + kPanel;
  for (std::int64_t block = 0; block < x.rows; block += kOuterBlock) {
    const std::int64_t rows = std::min(kOuterBlock, x.rows - block);
    const std::int64_t steps = (rows + kOuterStep - 1) / kOuterStep;
    float* a = packed_a_.floats(steps * a_step);
    float* b = packed_b_.floats(steps * b_step);
    const auto rows_of = [&](ConstMatrix m, std::int64_t step) {
      const std::int64_t first = step * kOuterStep;
      return m.slice_rows(block + first, std::min(kOuterStep, rows - first));
    };
    team_.share(steps, kOuterStep * (dy.cols / 4 + x.cols / 8),
                [&](std::int64_t, std::int64_t begin, std::int64_t end) {
                  for (std::int64_t step = begin; step < end; ++step) {
                    kernels_.pack_panels(rows_of(dy, step), a_width, a + step * a_step);
                    kernels_.pack_panels(rows_of(x, step), kPanel, b + step * b_step);
                  }
                });
    team_.share(panels_for(x.cols), rows * dy.cols * kPanel / kRate,
                [&](std::int64_t, std::int64_t begin, std::int64_t end) {
                  for (std::int64_t step = 0; step < steps; ++step) {
                    kernels_.outer_product({.a_panels = a + step * a_step,
                                            .b_panels = b + step * b_step,
                                            .depth = rows_of(x, step).rows,
                                            .first_panel = begin,
                                            .end_panel = end,
                                            .out = dw});
                  }
                });
  }
}

void CpuOps::bias_backward(ConstMatrix dy, std::span<float> dbias) {
  check_bias_backward(dy, dbias);
  team_.share(
      panels_for(dy.cols), 2 * dy.rows, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
        kernels_.bias_backward(dy, {begin * kPanel, std::min(end * kPanel, dy.cols)}, dbias.data());
      });
}

}  // namespace tidemill::engines::cpu
