// SPDX-License-Identifier: Apache-2.0
// Norms, rotations and activations. Every row is processed from its first column in steps of
// sixteen, so its bits do not depend on its neighbors.
#include <cstdint>

#include "engines/ops/cpu/halves.hpp"
#include "engines/ops/cpu/isa_kernels.hpp"
#include "engines/ops/cpu/kernels.hpp"
#include "engines/ops/cpu/vec.hpp"
#include "engines/ops/cpu/vec_math.hpp"

namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA {
namespace {

void rms_norm(ConstMatrix x, const float* gain, float eps, RowRange rows, Matrix out, float* rstd) {
  for (std::int64_t t = rows.first; t < rows.end; ++t) {
    const float* row = x.row(t);
    Vec squares = broadcast(0.0F);
    for (std::int64_t j = 0; j < x.cols; j += kLanes) {
      const Vec value = load_some(row + j, x.cols - j);
      squares = multiply_add(value, value, squares);
    }
    const double mean = double{sum_lanes(squares)} / static_cast<double>(x.cols);
    const auto r = static_cast<float>(1.0 / __builtin_sqrt(mean + double{eps}));
    const Vec scale = broadcast(r);
    for (std::int64_t j = 0; j < x.cols; j += kLanes) {
      const std::int64_t count = x.cols - j;
      const Vec normed = load_some(row + j, count) * scale;
      store_some(out.row(t) + j, normed * load_some(gain + j, count), count);
    }
    if (rstd != nullptr) {
      rstd[t] = r;
    }
  }
}

// With n = x * rstd and g = dout * gain: dx = rstd * (g - n * mean(g * n)).
void rms_norm_backward(ConstMatrix dout, ConstMatrix x, const float* gain, const float* rstd,
                       Store store, RowRange rows, Matrix dx) {
  for (std::int64_t t = rows.first; t < rows.end; ++t) {
    const Vec r = broadcast(rstd[t]);
    Vec products = broadcast(0.0F);
    for (std::int64_t j = 0; j < x.cols; j += kLanes) {
      const std::int64_t count = x.cols - j;
      const Vec g = load_some(dout.row(t) + j, count) * load_some(gain + j, count);
      products = multiply_add(g, load_some(x.row(t) + j, count) * r, products);
    }
    const Vec mean =
        broadcast(static_cast<float>(double{sum_lanes(products)} / static_cast<double>(x.cols)));
    for (std::int64_t j = 0; j < x.cols; j += kLanes) {
      const std::int64_t count = x.cols - j;
      const Vec n = load_some(x.row(t) + j, count) * r;
      const Vec g = load_some(dout.row(t) + j, count) * load_some(gain + j, count);
      Vec gradient = r * multiply_add(-n, mean, g);
      if (store == Store::kAdd) {
        gradient = load_some(dx.row(t) + j, count) + gradient;
      }
      store_some(dx.row(t) + j, gradient, count);
    }
  }
}

void gain_backward(ConstMatrix dout, ConstMatrix x, const float* rstd, RowRange columns,
                   float* dgain) {
  for (std::int64_t j = columns.first; j < columns.end; j += kLanes) {
    const std::int64_t count = columns.end - j;
    Vec sum = load_some(dgain + j, count);
    for (std::int64_t t = 0; t < x.rows; ++t) {
      const Vec n = load_some(x.row(t) + j, count) * broadcast(rstd[t]);
      sum = multiply_add(load_some(dout.row(t) + j, count), n, sum);
    }
    store_some(dgain + j, sum, count);
  }
}

void rope(Matrix x, std::int64_t head_dim, const std::int32_t* positions, const RopeTables& tables,
          RopeDirection direction, RowRange rows) {
  const std::int64_t half = head_dim / 2;
  const Vec sign = broadcast(direction == RopeDirection::kForward ? 1.0F : -1.0F);
  for (std::int64_t t = rows.first; t < rows.end; ++t) {
    const float* cosines = tables.cosine.row(positions[t]);
    const float* sines = tables.sine.row(positions[t]);
    for (std::int64_t i = 0; i < half; i += kLanes) {
      const std::int64_t count = half - i;
      const Vec cosine = load_some(cosines + i, count);
      const Vec sine = load_some(sines + i, count) * sign;
      for (float* head = x.row(t) + i; head < x.row(t) + x.cols; head += head_dim) {
        const Vec a = load_some(head, count);
        const Vec b = load_some(head + half, count);
        store_some(head, multiply_add(-b, sine, a * cosine), count);
        store_some(head + half, multiply_add(a, sine, b * cosine), count);
      }
    }
  }
}

Vec sigmoid(const Vec& x) {
  const Vec one = broadcast(1.0F);
  return one / (one + exponential(-x));
}

void swiglu(ConstMatrix gate, ConstMatrix up, RowRange rows, Matrix out) {
  for (std::int64_t t = rows.first; t < rows.end; ++t) {
    for (std::int64_t j = 0; j < out.cols; j += kLanes) {
      const std::int64_t count = out.cols - j;
      const Vec g = load_some(gate.row(t) + j, count);
      store_some(out.row(t) + j, g * sigmoid(g) * load_some(up.row(t) + j, count), count);
    }
  }
}

void swiglu_backward(ConstMatrix dout, ConstMatrix gate, ConstMatrix up, RowRange rows,
                     Matrix dgate, Matrix dup) {
  const Vec one = broadcast(1.0F);
  for (std::int64_t t = rows.first; t < rows.end; ++t) {
    for (std::int64_t j = 0; j < gate.cols; j += kLanes) {
      const std::int64_t count = gate.cols - j;
      const Vec g = load_some(gate.row(t) + j, count);
      const Vec u = load_some(up.row(t) + j, count);
      const Vec d = load_some(dout.row(t) + j, count);
      const Vec s = sigmoid(g);
      store_some(dgate.row(t) + j, d * u * s * multiply_add(g, one - s, one), count);
      store_some(dup.row(t) + j, d * g * s, count);
    }
  }
}

void narrow(ConstMatrix x, RowRange rows, std::uint16_t* out) {
  for (std::int64_t t = rows.first; t < rows.end; ++t) {
    for (std::int64_t j = 0; j < x.cols; j += kLanes) {
      const std::int64_t count = x.cols - j;
      store_halves(out + t * x.cols + j, bf16_rounded(load_some(x.row(t) + j, count)), count);
    }
  }
}

void widen(const std::uint16_t* x, RowRange rows, Matrix out) {
  for (std::int64_t t = rows.first; t < rows.end; ++t) {
    for (std::int64_t j = 0; j < out.cols; j += kLanes) {
      const std::int64_t count = out.cols - j;
      store_some(out.row(t) + j, load_some(x + t * out.cols + j, count), count);
    }
  }
}

void scale(float factor, RowRange rows, Matrix x) {
  const Vec by = broadcast(factor);
  for (std::int64_t t = rows.first; t < rows.end; ++t) {
    for (std::int64_t j = 0; j < x.cols; j += kLanes) {
      const std::int64_t count = x.cols - j;
      store_some(x.row(t) + j, load_some(x.row(t) + j, count) * by, count);
    }
  }
}

void add_scaled(ConstMatrix x, float factor, RowRange rows, Matrix y) {
  const Vec scale = broadcast(factor);
  for (std::int64_t t = rows.first; t < rows.end; ++t) {
    for (std::int64_t j = 0; j < y.cols; j += kLanes) {
      const std::int64_t count = y.cols - j;
      const Vec sum =
          multiply_add(scale, load_some(x.row(t) + j, count), load_some(y.row(t) + j, count));
      store_some(y.row(t) + j, sum, count);
    }
  }
}

void scale_columns(ConstMatrix x, const float* factors, const float* bias, Store store,
                   RowRange rows, Matrix out) {
  for (std::int64_t t = rows.first; t < rows.end; ++t) {
    for (std::int64_t j = 0; j < out.cols; j += kLanes) {
      const std::int64_t count = out.cols - j;
      const Vec factor = load_some(factors + j, count);
      const Vec added = bias != nullptr ? load_some(bias + j, count) : broadcast(0.0F);
      const Vec sum = multiply_add(load_some(x.row(t) + j, count), factor, added);
      store_some(out.row(t) + j,
                 store == Store::kAdd ? load_some(out.row(t) + j, count) + sum : sum, count);
    }
  }
}

void scale_columns_backward(ConstMatrix dout, ConstMatrix x, RowRange columns, float* dfactors) {
  for (std::int64_t j = columns.first; j < columns.end; j += kLanes) {
    const std::int64_t count = columns.end - j;
    Vec sum = load_some(dfactors + j, count);
    for (std::int64_t t = 0; t < x.rows; ++t) {
      sum = multiply_add(load_some(dout.row(t) + j, count), load_some(x.row(t) + j, count), sum);
    }
    store_some(dfactors + j, sum, count);
  }
}

}  // namespace

void add_row_kernels(KernelTable& table) noexcept {
  table.rms_norm = rms_norm;
  table.rms_norm_backward = rms_norm_backward;
  table.gain_backward = gain_backward;
  table.rope = rope;
  table.swiglu = swiglu;
  table.swiglu_backward = swiglu_backward;
  table.narrow = narrow;
  table.widen = widen;
  table.scale = scale;
  table.add_scaled = add_scaled;
  table.scale_columns = scale_columns;
  table.scale_columns_backward = scale_columns_backward;
}

}  // namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA
