// SPDX-License-Identifier: Apache-2.0
// Row-wise operations and token losses of the CPU backend.
#include <algorithm>
#include <cmath>

#include "base/check.hpp"
#include "engines/ops/cpu/cpu_ops.hpp"
#include "engines/ops/shapes.hpp"
#include "engines/ops/weight_elements.hpp"

namespace tidemill::engines::cpu {
namespace {

const float* data_or_null(std::span<const float> values) {
  return values.empty() ? nullptr : values.data();
}
float* data_or_null(std::span<float> values) {
  return values.empty() ? nullptr : values.data();
}

}  // namespace

void CpuOps::embed(std::span<const std::int32_t> ids, const WeightView& table, Matrix out) {
  check_weight(table);
  TIDEMILL_CHECK(check_weight_types(table.dtype, DType::kF32).ok()) << dtype_name(table.dtype);
  check_embed(ids, table.out_features, table.in_features, out);
  team_.parallel_for(out.rows, out.cols, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const std::int64_t first = ids[static_cast<std::size_t>(t)] * out.cols;
      for (std::int64_t j = 0; j < out.cols; ++j) {
        out.row(t)[j] = weight_element(table, first + j);
      }
    }
  });
}

void CpuOps::embed_tied(std::span<const std::int32_t> ids, const PreparedWeight& weight,
                        Matrix out) {
  const auto& panels = dynamic_cast<const PanelWeight&>(weight);
  TIDEMILL_CHECK(panels.dtype() == DType::kBlockI8) << dtype_name(panels.dtype());
  check_embed(ids, panels.out_features(), panels.in_features(), out);
  team_.parallel_for(out.rows, 4 * out.cols,
                     [&](std::int64_t, std::int64_t begin, std::int64_t end) {
                       for (std::int64_t t = begin; t < end; ++t) {
                         panels.read_row(ids[static_cast<std::size_t>(t)], out.row(t));
                       }
                     });
}

void CpuOps::embed_backward(std::span<const std::int32_t> ids, ConstMatrix dout, Matrix dtable) {
  check_embed(ids, dtable.rows, dtable.cols, dout);
  // Workers divide the columns, since several rows may add to the same row of the table.
  team_.parallel_for(panels_for(dout.cols), 4 * dout.rows,
                     [&](std::int64_t, std::int64_t begin, std::int64_t end) {
                       const std::int64_t last = std::min(end * kPanel, dout.cols);
                       for (std::int64_t t = 0; t < dout.rows; ++t) {
                         float* row = dtable.row(ids[static_cast<std::size_t>(t)]);
                         for (std::int64_t j = begin * kPanel; j < last; ++j) {
                           row[j] += dout.row(t)[j];
                         }
                       }
                     });
}

void CpuOps::rms_norm(ConstMatrix x, std::span<const float> gain, float eps, Matrix out,
                      std::span<float> rstd) {
  check_rms_norm(x, gain, out, rstd);
  team_.parallel_for(
      x.rows, x.cols / 2 + 40, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
        kernels_.rms_norm(x, gain.data(), eps, {begin, end}, out, data_or_null(rstd));
      });
}

void CpuOps::rms_norm_backward(ConstMatrix dout, ConstMatrix x, std::span<const float> gain,
                               std::span<const float> rstd, Store store, Matrix dx,
                               std::span<float> dgain) {
  check_rms_norm_backward(dout, x, gain, rstd, dx, dgain);
  team_.parallel_for(x.rows, x.cols + 40, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
    kernels_.rms_norm_backward(dout, x, gain.data(), rstd.data(), store, {begin, end}, dx);
  });
  if (dgain.empty()) {
    return;
  }
  team_.parallel_for(
      panels_for(x.cols), 4 * x.rows, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
        kernels_.gain_backward(dout, x, rstd.data(),
                               {begin * kPanel, std::min(end * kPanel, x.cols)}, dgain.data());
      });
}

void CpuOps::rope(Matrix x, std::int64_t head_dim, std::span<const std::int32_t> positions,
                  const RopeTables& tables, RopeDirection direction) {
  check_rope(x, head_dim, positions, tables);
  team_.parallel_for(x.rows, x.cols / 2, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
    kernels_.rope(x, head_dim, positions.data(), tables, direction, {begin, end});
  });
}

void CpuOps::swiglu(ConstMatrix gate, ConstMatrix up, Matrix out) {
  check_same_shape(gate, up);
  check_same_shape(gate, out);
  team_.parallel_for(out.rows, 2 * out.cols,
                     [&](std::int64_t, std::int64_t begin, std::int64_t end) {
                       kernels_.swiglu(gate, up, {begin, end}, out);
                     });
}

void CpuOps::swiglu_backward(ConstMatrix dout, ConstMatrix gate, ConstMatrix up, Matrix dgate,
                             Matrix dup) {
  check_same_shape(gate, up);
  check_same_shape(gate, dout);
  check_same_shape(gate, dgate);
  check_same_shape(gate, dup);
  team_.parallel_for(gate.rows, 3 * gate.cols,
                     [&](std::int64_t, std::int64_t begin, std::int64_t end) {
                       kernels_.swiglu_backward(dout, gate, up, {begin, end}, dgate, dup);
                     });
}

void CpuOps::add_scaled(ConstMatrix x, float factor, Matrix y) {
  check_same_shape(x, y);
  team_.parallel_for(y.rows, y.cols / 4, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
    kernels_.add_scaled(x, factor, {begin, end}, y);
  });
}

void CpuOps::narrow(ConstMatrix x, std::span<std::uint16_t> out) {
  check_halves(x, out);
  team_.parallel_for(x.rows, x.cols / 4, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
    kernels_.narrow(x, {begin, end}, out.data());
  });
}

void CpuOps::widen(std::span<const std::uint16_t> x, Matrix out) {
  check_halves(out, x);
  team_.parallel_for(out.rows, out.cols / 4,
                     [&](std::int64_t, std::int64_t begin, std::int64_t end) {
                       kernels_.widen(x.data(), {begin, end}, out);
                     });
}

void CpuOps::adamw(const AdamWFactors<float>& factors, const AdamWTensor<float>& tensor) {
  const std::size_t size = tensor.weights.size();
  TIDEMILL_CHECK(tensor.gradient.size() == size && tensor.first_moment.size() == size &&
                 tensor.second_moment.size() == size);
  team_.parallel_for(panels_for(std::ssize(tensor.weights)), kPanel,
                     [&](std::int64_t, std::int64_t begin, std::int64_t end) {
                       const auto first = static_cast<std::size_t>(begin * kPanel);
                       const auto count =
                           std::min(static_cast<std::size_t>(end * kPanel), size) - first;
                       kernels_.adamw(factors, {tensor.weights.subspan(first, count),
                                                tensor.gradient.subspan(first, count),
                                                tensor.first_moment.subspan(first, count),
                                                tensor.second_moment.subspan(first, count)});
                     });
}

void CpuOps::scale(float factor, Matrix x) {
  check_same_shape(x, x);
  team_.parallel_for(x.rows, x.cols / 8, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
    kernels_.scale(factor, {begin, end}, x);
  });
}

void CpuOps::scale_columns(ConstMatrix x, std::span<const float> factors,
                           std::span<const float> bias, Store store, Matrix out) {
  check_scale_columns(x, factors, bias, out);
  team_.parallel_for(
      out.rows, out.cols / 4, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
        kernels_.scale_columns(x, factors.data(), data_or_null(bias), store, {begin, end}, out);
      });
}

void CpuOps::scale_columns_backward(ConstMatrix dout, ConstMatrix x, std::span<float> dfactors) {
  check_scale_columns_backward(dout, x, dfactors);
  team_.parallel_for(
      panels_for(x.cols), 4 * x.rows, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
        kernels_.scale_columns_backward(dout, x, {begin * kPanel, std::min(end * kPanel, x.cols)},
                                        dfactors.data());
      });
}

// Workers divide the blocks of the row. Their sums are added in the order of the kernel.
void CpuOps::log_softmax_row(ConstMatrix logits, std::int32_t target, float inv_temperature,
                             float& logprob, float& entropy) {
  const float* row = logits.row(0);
  const std::int64_t blocks = (logits.cols + kSoftmaxBlock - 1) / kSoftmaxBlock;
  float* tops = rounded_.floats(3 * blocks);
  float* sums = tops + blocks;
  float* products = sums + blocks;
  team_.parallel_for(
      blocks, kSoftmaxBlock / 4, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
        for (std::int64_t b = begin; b < end; ++b) {
          const std::int64_t first = b * kSoftmaxBlock;
          tops[b] = kernels_.log_softmax_top(
              row, {first, std::min(first + kSoftmaxBlock, logits.cols)}, inv_temperature);
        }
      });
  const float top = *std::max_element(tops, tops + blocks);
  team_.parallel_for(blocks, 2 * kSoftmaxBlock,
                     [&](std::int64_t, std::int64_t begin, std::int64_t end) {
                       kernels_.log_softmax_sums(row, logits.cols, inv_temperature, top,
                                                 {begin, end}, sums, products);
                     });
  double sum = 0.0;
  double weighted = 0.0;
  for (std::int64_t b = 0; b < blocks; ++b) {
    sum += double{sums[b]};
    weighted += double{products[b]};
  }
  const double log_sum = std::log(sum);
  const float z = row[target] * inv_temperature;
  logprob = static_cast<float>(double{z} - double{top} - log_sum);
  entropy = static_cast<float>(log_sum - weighted / sum);
}

void CpuOps::log_softmax_gather(ConstMatrix logits, std::span<const std::int32_t> targets,
                                float inv_temperature, std::span<float> logprobs,
                                std::span<float> entropies) {
  check_log_softmax_gather(logits, targets, logprobs, entropies);
  // Rows that are left when each worker has the same number of rows are divided one by one.
  const std::int64_t whole = logits.rows / team_.size() * team_.size();
  team_.parallel_for(
      whole, 2 * logits.cols, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
        kernels_.log_softmax_gather(logits, targets.data(), inv_temperature, {begin, end},
                                    logprobs.data(), data_or_null(entropies));
      });
  for (std::int64_t t = whole; t < logits.rows; ++t) {
    const auto i = static_cast<std::size_t>(t);
    float logprob = 0.0F;
    float entropy = 0.0F;
    if (targets[i] >= 0) {
      log_softmax_row(logits.slice_rows(t, 1), targets[i], inv_temperature, logprob, entropy);
    }
    logprobs[i] = logprob;
    if (!entropies.empty()) {
      entropies[i] = entropy;
    }
  }
}

void CpuOps::log_softmax_backward(Matrix logits, std::span<const std::int32_t> targets,
                                  float inv_temperature, std::span<const float> dlogprobs,
                                  std::span<const float> dentropies) {
  check_log_softmax_gather(logits, targets, dlogprobs, dentropies);
  team_.parallel_for(
      logits.rows, 4 * logits.cols, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
        kernels_.log_softmax_backward(logits, targets.data(), inv_temperature, dlogprobs.data(),
                                      data_or_null(dentropies), {begin, end});
      });
}

}  // namespace tidemill::engines::cpu
