// SPDX-License-Identifier: Apache-2.0
// Log-softmax of vocabulary rows, its entropy and its gradient.
#include <cstdint>
#include <math.h>  // NOLINT(modernize-deprecated-headers): <cmath> would add inline functions.

#include "engines/ops/cpu/isa_kernels.hpp"
#include "engines/ops/cpu/kernels.hpp"
#include "engines/ops/cpu/vec.hpp"
#include "engines/ops/cpu/vec_math.hpp"

namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA {
namespace {

struct Distribution {
  float top = 0.0F;      // the largest scaled logit
  double log_sum = 0.0;  // of exp(z - top)
  double entropy = 0.0;
};

Vec scaled_logits(const float* row, std::int64_t count, const Vec& inv_temperature) {
  return load_some(row, count) * inv_temperature;
}

// Returns the bits of `exponential` for x <= 0 and for NaN, in fewer operations.
inline Vec nonpositive_exponential(const Vec& x) {
  const ExponentialParts parts = exponential_parts(x);
  const Vec scaled = each_part([&](int i) {
    const auto exponent = reinterpret_cast<WordRegister>(parts.shifted.part[i]) << 23U;
    return reinterpret_cast<Register>(reinterpret_cast<WordRegister>(parts.power.part[i]) +
                                      exponent);
  });
  return select(x != x, x, select(x < broadcast(-87.3F), broadcast(0.0F), scaled));
}

// Flattened, like the function below it, because the calls for the last lanes would otherwise keep
// GCC from inlining those of the loop.
[[gnu::flatten]] float log_softmax_top(const float* row, RowRange columns, float inv_temperature) {
  const Vec inverse = broadcast(inv_temperature);
  const Vec lowest = broadcast(-__builtin_inff());
  Vec tops = lowest;
  std::int64_t j = columns.first;
  for (; j + kLanes <= columns.end; j += kLanes) {
    tops = maximum(tops, load(row + j) * inverse);
  }
  if (j < columns.end) {
    const Vec z = scaled_logits(row + j, columns.end - j, inverse);
    tops = maximum(tops, select(lanes_between(0, columns.end - j - 1), z, lowest));
  }
  return max_lane(tops);
}

[[gnu::flatten]] void log_softmax_sums(const float* row, std::int64_t cols, float inv_temperature,
                                       float largest, RowRange blocks, float* block_sums,
                                       float* block_products) {
  const Vec inverse = broadcast(inv_temperature);
  const Vec top = broadcast(largest);
  const Vec zero = broadcast(0.0F);
  for (std::int64_t block = blocks.first; block < blocks.end; ++block) {
    std::int64_t j = block * kSoftmaxBlock;
    const std::int64_t end = j + kSoftmaxBlock < cols ? j + kSoftmaxBlock : cols;
    Vec sums = zero;
    Vec products = zero;
    // Where p is 0 the product is 0 too, even for a logit of -infinity.
    for (; j + kLanes <= end; j += kLanes) {
      const Vec below = load(row + j) * inverse - top;
      const Vec p = nonpositive_exponential(below);
      sums = sums + p;
      products = products + select(p != zero, p * below, zero);
    }
    if (j < end) {
      const Vec below = scaled_logits(row + j, end - j, inverse) - top;
      const Vec p = select(lanes_between(0, end - j - 1), nonpositive_exponential(below), zero);
      sums = sums + p;
      products = products + select(p != zero, p * below, zero);
    }
    block_sums[block] = sum_lanes(sums);
    block_products[block] = sum_lanes(products);
  }
}

Distribution distribution(const float* row, std::int64_t size, float inv_temperature) {
  Distribution out;
  out.top = log_softmax_top(row, {0, size}, inv_temperature);
  double sum = 0.0;
  double weighted = 0.0;  // of p~ (z - top), where p~ = exp(z - top)
  for (std::int64_t begin = 0; begin < size; begin += kSoftmaxBlock) {
    float block_sum = 0.0F;
    float block_product = 0.0F;
    log_softmax_sums(row + begin, size - begin, inv_temperature, out.top, {0, 1}, &block_sum,
                     &block_product);
    sum += double{block_sum};
    weighted += double{block_product};
  }
  out.log_sum = ::log(sum);
  out.entropy = out.log_sum - weighted / sum;
  return out;
}

void log_softmax_gather(ConstMatrix logits, const std::int32_t* targets, float inv_temperature,
                        RowRange rows, float* logprobs, float* entropies) {
  for (std::int64_t t = rows.first; t < rows.end; ++t) {
    float logprob = 0.0F;
    float entropy = 0.0F;
    if (targets[t] >= 0) {
      const Distribution d = distribution(logits.row(t), logits.cols, inv_temperature);
      const float z = logits.row(t)[targets[t]] * inv_temperature;
      logprob = static_cast<float>(double{z} - double{d.top} - d.log_sum);
      entropy = static_cast<float>(d.entropy);
    }
    logprobs[t] = logprob;
    if (entropies != nullptr) {
      entropies[t] = entropy;
    }
  }
}

// d logprob / dz[v] = [v = target] - p[v];  d entropy / dz[v] = -p[v] (log p[v] + entropy).
void log_softmax_backward(Matrix logits, const std::int32_t* targets, float inv_temperature,
                          const float* dlogprobs, const float* dentropies, RowRange rows) {
  const Vec inverse = broadcast(inv_temperature);
  const Vec zero = broadcast(0.0F);
  for (std::int64_t t = rows.first; t < rows.end; ++t) {
    float* row = logits.row(t);
    if (targets[t] < 0) {
      for (std::int64_t j = 0; j < logits.cols; j += kLanes) {
        store_some(row + j, zero, logits.cols - j);
      }
      continue;
    }
    const Distribution d = distribution(row, logits.cols, inv_temperature);
    const float dlogprob = dlogprobs[t];
    const float dentropy = dentropies == nullptr ? 0.0F : dentropies[t];
    const Vec top = broadcast(d.top);
    const Vec log_sum = broadcast(static_cast<float>(d.log_sum));
    const Vec entropy = broadcast(static_cast<float>(d.entropy));
    for (std::int64_t j = 0; j < logits.cols; j += kLanes) {
      const std::int64_t count = logits.cols - j;
      const Vec log_p = scaled_logits(row + j, count, inverse) - top - log_sum;
      const Vec p = exponential(log_p);
      const Vec surprise = select(p != zero, log_p + entropy, zero);
      const Vec factor = multiply_add(broadcast(dentropy), surprise, broadcast(dlogprob));
      store_some(row + j, -(p * factor) * inverse, count);
    }
    // The row no longer holds its logits, so the target's share is added last.
    row[targets[t]] += dlogprob * inv_temperature;
  }
}

}  // namespace

void add_loss_kernels(KernelTable& table) noexcept {
  table.log_softmax_gather = log_softmax_gather;
  table.log_softmax_backward = log_softmax_backward;
  table.log_softmax_top = log_softmax_top;
  table.log_softmax_sums = log_softmax_sums;
}

}  // namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA
