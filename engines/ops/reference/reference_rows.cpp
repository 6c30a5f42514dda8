// SPDX-License-Identifier: Apache-2.0
// Row-wise operations and token losses of the reference backend.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "base/check.hpp"
#include "engines/ops/reference/reference_ops.hpp"
#include "engines/ops/shapes.hpp"
#include "engines/ops/weight_elements.hpp"

namespace tidemill::engines::host {
namespace {

double sigmoid(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}

// The log_softmax of a row: log p[v] = scaled(v) - log_sum.
struct RowDistribution {
  const float* logits;
  std::int64_t size;
  double inv_temperature;
  double log_sum = 0.0;
  double entropy = 0.0;

  RowDistribution(const float* row, std::int64_t count, float inverse)
      : logits(row), size(count), inv_temperature(inverse) {
    double top = -std::numeric_limits<double>::infinity();
    for (std::int64_t v = 0; v < size; ++v) {
      top = std::max(top, scaled(v));
    }
    double sum = 0.0;
    for (std::int64_t v = 0; v < size; ++v) {
      sum += std::exp(scaled(v) - top);
    }
    log_sum = top + std::log(sum);
    for (std::int64_t v = 0; v < size; ++v) {
      entropy -= surprise_weighted(v);
    }
  }
  [[nodiscard]] double scaled(std::int64_t v) const { return double{logits[v]} * inv_temperature; }
  [[nodiscard]] double log_p(std::int64_t v) const { return scaled(v) - log_sum; }
  // p log p, with its limit 0 where a logit is -infinity.
  [[nodiscard]] double surprise_weighted(std::int64_t v) const {
    const double p = std::exp(log_p(v));
    return p == 0.0 ? 0.0 : p * log_p(v);
  }
};

}  // namespace

void ReferenceOps::embed(std::span<const std::int32_t> ids, const WeightView& table, Matrix out) {
  check_weight(table);
  TIDEMILL_CHECK(check_weight_types(table.dtype, DType::kF32).ok()) << dtype_name(table.dtype);
  check_embed(ids, table.out_features, table.in_features, out);
  for (std::int64_t t = 0; t < out.rows; ++t) {
    const std::int64_t first = ids[static_cast<std::size_t>(t)] * out.cols;
    for (std::int64_t j = 0; j < out.cols; ++j) {
      out.row(t)[j] = weight_element(table, first + j);
    }
  }
}

void ReferenceOps::embed_tied(std::span<const std::int32_t> ids, const PreparedWeight& weight,
                              Matrix out) {
  const auto& values = dynamic_cast<const ReferenceWeight&>(weight);
  check_embed(ids, values.out_features(), values.in_features(), out);
  for (std::int64_t t = 0; t < out.rows; ++t) {
    for (std::int64_t j = 0; j < out.cols; ++j) {
      out.row(t)[j] = values.at(ids[static_cast<std::size_t>(t)], j);
    }
  }
}

void ReferenceOps::embed_backward(std::span<const std::int32_t> ids, ConstMatrix dout,
                                  Matrix dtable) {
  check_embed(ids, dtable.rows, dtable.cols, dout);
  for (std::int64_t t = 0; t < dout.rows; ++t) {
    float* row = dtable.row(ids[static_cast<std::size_t>(t)]);
    for (std::int64_t j = 0; j < dout.cols; ++j) {
      row[j] += dout.row(t)[j];
    }
  }
}

void ReferenceOps::rms_norm(ConstMatrix x, std::span<const float> gain, float eps, Matrix out,
                            std::span<float> rstd) {
  check_rms_norm(x, gain, out, rstd);
  for (std::int64_t t = 0; t < x.rows; ++t) {
    double squares = 0.0;
    for (std::int64_t j = 0; j < x.cols; ++j) {
      squares += double{x.row(t)[j]} * double{x.row(t)[j]};
    }
    const auto r =
        static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(x.cols) + double{eps}));
    for (std::int64_t j = 0; j < x.cols; ++j) {
      out.row(t)[j] = x.row(t)[j] * r * gain[static_cast<std::size_t>(j)];
    }
    if (!rstd.empty()) {
      rstd[static_cast<std::size_t>(t)] = r;
    }
  }
}

void ReferenceOps::rms_norm_backward(ConstMatrix dout, ConstMatrix x, std::span<const float> gain,
                                     std::span<const float> rstd, Store store, Matrix dx,
                                     std::span<float> dgain) {
  check_rms_norm_backward(dout, x, gain, rstd, dx, dgain);
  for (std::int64_t t = 0; t < x.rows; ++t) {
    const double r = rstd[static_cast<std::size_t>(t)];
    // With n = x * r and g = dout * gain: dx = r * (g - n * mean(g * n)).
    double mean = 0.0;
    for (std::int64_t j = 0; j < x.cols; ++j) {
      mean += double{dout.row(t)[j]} * gain[static_cast<std::size_t>(j)] * x.row(t)[j] * r;
    }
    mean /= static_cast<double>(x.cols);
    for (std::int64_t j = 0; j < x.cols; ++j) {
      const double n = x.row(t)[j] * r;
      const double g = double{dout.row(t)[j]} * gain[static_cast<std::size_t>(j)];
      if (!dgain.empty()) {
        dgain[static_cast<std::size_t>(j)] += static_cast<float>(dout.row(t)[j] * n);
      }
      const double gradient = r * (g - n * mean);
      float& out = dx.row(t)[j];
      out = static_cast<float>(store == Store::kAdd ? out + gradient : gradient);
    }
  }
}

void ReferenceOps::rope(Matrix x, std::int64_t head_dim, std::span<const std::int32_t> positions,
                        const RopeTables& tables, RopeDirection direction) {
  check_rope(x, head_dim, positions, tables);
  const std::int64_t half = head_dim / 2;
  const float sign = direction == RopeDirection::kForward ? 1.0F : -1.0F;
  for (std::int64_t t = 0; t < x.rows; ++t) {
    const float* cosine = tables.cosine.row(positions[static_cast<std::size_t>(t)]);
    const float* sine = tables.sine.row(positions[static_cast<std::size_t>(t)]);
    for (std::int64_t head = 0; head < x.cols / head_dim; ++head) {
      float* values = x.row(t) + head * head_dim;
      for (std::int64_t i = 0; i < half; ++i) {
        const float a = values[i];
        const float b = values[i + half];
        values[i] = a * cosine[i] - b * sign * sine[i];
        values[i + half] = b * cosine[i] + a * sign * sine[i];
      }
    }
  }
}

void ReferenceOps::swiglu(ConstMatrix gate, ConstMatrix up, Matrix out) {
  check_same_shape(gate, up);
  check_same_shape(gate, out);
  for (std::int64_t t = 0; t < out.rows; ++t) {
    for (std::int64_t j = 0; j < out.cols; ++j) {
      const double g = gate.row(t)[j];
      out.row(t)[j] = static_cast<float>(g * sigmoid(g) * up.row(t)[j]);
    }
  }
}

void ReferenceOps::swiglu_backward(ConstMatrix dout, ConstMatrix gate, ConstMatrix up, Matrix dgate,
                                   Matrix dup) {
  check_same_shape(gate, up);
  check_same_shape(gate, dout);
  check_same_shape(gate, dgate);
  check_same_shape(gate, dup);
  for (std::int64_t t = 0; t < gate.rows; ++t) {
    for (std::int64_t j = 0; j < gate.cols; ++j) {
      const double g = gate.row(t)[j];
      const double u = up.row(t)[j];
      const double d = dout.row(t)[j];
      const double s = sigmoid(g);
      dgate.row(t)[j] = static_cast<float>(d * u * s * (1.0 + g * (1.0 - s)));
      dup.row(t)[j] = static_cast<float>(d * g * s);
    }
  }
}

void ReferenceOps::add_scaled(ConstMatrix x, float factor, Matrix y) {
  check_same_shape(x, y);
  for (std::int64_t t = 0; t < y.rows; ++t) {
    for (std::int64_t j = 0; j < y.cols; ++j) {
      y.row(t)[j] += factor * x.row(t)[j];
    }
  }
}

void ReferenceOps::narrow(ConstMatrix x, std::span<std::uint16_t> out) {
  check_halves(x, out);
  for (std::int64_t t = 0; t < x.rows; ++t) {
    for (std::int64_t j = 0; j < x.cols; ++j) {
      out[static_cast<std::size_t>(t * x.cols + j)] = float_to_bf16(x.row(t)[j]);
    }
  }
}

void ReferenceOps::widen(std::span<const std::uint16_t> x, Matrix out) {
  check_halves(out, x);
  for (std::int64_t t = 0; t < out.rows; ++t) {
    for (std::int64_t j = 0; j < out.cols; ++j) {
      out.row(t)[j] = bf16_to_float(x[static_cast<std::size_t>(t * out.cols + j)]);
    }
  }
}

void ReferenceOps::adamw(const AdamWFactors<float>& factors, const AdamWTensor<float>& tensor) {
  adamw_update(factors, tensor);
}

void ReferenceOps::scale(float factor, Matrix x) {
  check_same_shape(x, x);
  for (std::int64_t t = 0; t < x.rows; ++t) {
    for (std::int64_t j = 0; j < x.cols; ++j) {
      x.row(t)[j] *= factor;
    }
  }
}

void ReferenceOps::scale_columns(ConstMatrix x, std::span<const float> factors,
                                 std::span<const float> bias, Store store, Matrix out) {
  check_scale_columns(x, factors, bias, out);
  for (std::int64_t t = 0; t < x.rows; ++t) {
    for (std::int64_t j = 0; j < x.cols; ++j) {
      const auto column = static_cast<std::size_t>(j);
      const float sum = x.row(t)[j] * factors[column] + (bias.empty() ? 0.0F : bias[column]);
      float& to = out.row(t)[j];
      to = store == Store::kAdd ? to + sum : sum;
    }
  }
}

void ReferenceOps::scale_columns_backward(ConstMatrix dout, ConstMatrix x,
                                          std::span<float> dfactors) {
  check_scale_columns_backward(dout, x, dfactors);
  for (std::int64_t t = 0; t < x.rows; ++t) {
    for (std::int64_t j = 0; j < x.cols; ++j) {
      dfactors[static_cast<std::size_t>(j)] += dout.row(t)[j] * x.row(t)[j];
    }
  }
}

void ReferenceOps::log_softmax_gather(ConstMatrix logits, std::span<const std::int32_t> targets,
                                      float inv_temperature, std::span<float> logprobs,
                                      std::span<float> entropies) {
  check_log_softmax_gather(logits, targets, logprobs, entropies);
  for (std::int64_t t = 0; t < logits.rows; ++t) {
    const auto i = static_cast<std::size_t>(t);
    double logprob = 0.0;
    double entropy = 0.0;
    if (targets[i] >= 0) {
      const RowDistribution row(logits.row(t), logits.cols, inv_temperature);
      logprob = row.log_p(targets[i]);
      entropy = row.entropy;
    }
    logprobs[i] = static_cast<float>(logprob);
    if (!entropies.empty()) {
      entropies[i] = static_cast<float>(entropy);
    }
  }
}

void ReferenceOps::log_softmax_backward(Matrix logits, std::span<const std::int32_t> targets,
                                        float inv_temperature, std::span<const float> dlogprobs,
                                        std::span<const float> dentropies) {
  check_log_softmax_gather(logits, targets, dlogprobs, dentropies);
  for (std::int64_t t = 0; t < logits.rows; ++t) {
    const auto i = static_cast<std::size_t>(t);
    float* out = logits.row(t);
    if (targets[i] < 0) {
      std::fill_n(out, logits.cols, 0.0F);
      continue;
    }
    const RowDistribution row(out, logits.cols, inv_temperature);
    const double dlogprob = dlogprobs[i];
    const double dentropy = dentropies.empty() ? 0.0 : dentropies[i];
    // d logprob / dz[v] = [v = target] - p[v];  d entropy / dz[v] = -p[v] (log p[v] + entropy).
    for (std::int64_t v = 0; v < logits.cols; ++v) {
      const double p = std::exp(row.log_p(v));
      const double gradient = dlogprob * ((v == targets[i] ? 1.0 : 0.0) - p) -
                              dentropy * (row.surprise_weighted(v) + p * row.entropy);
      out[v] = static_cast<float>(gradient * double{inv_temperature});
    }
  }
}

}  // namespace tidemill::engines::host
