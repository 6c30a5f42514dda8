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

// Columns that are summed in float lanes before the sum is added to a double. This keeps the error
// of a row of any length near one rounding.
constexpr std::int64_t kSumBlock = 64 * kLanes;

struct Distribution {
  float top = 0.0F;      // the largest scaled logit
  double log_sum = 0.0;  // of exp(z - top)
  double entropy = 0.0;
};

Vec scaled_logits(const float* row, std::int64_t count, const Vec& inv_temperature) {
  return load_some(row, count) * inv_temperature;
}

Distribution distribution(const float* row, std::int64_t size, float inv_temperature) {
  const Vec inverse = broadcast(inv_temperature);
  const Vec lowest = broadcast(-__builtin_inff());
  Vec tops = lowest;
  for (std::int64_t j = 0; j < size; j += kLanes) {
    const Vec z = scaled_logits(row + j, size - j, inverse);
    tops = maximum(tops, size - j < kLanes ? select(lanes_between(0, size - j - 1), z, lowest) : z);
  }
  Distribution out;
  out.top = max_lane(tops);
  const Vec top = broadcast(out.top);
  const Vec zero = broadcast(0.0F);
  double sum = 0.0;
  double weighted = 0.0;  // of p~ (z - top), where p~ = exp(z - top)
  for (std::int64_t block = 0; block < size; block += kSumBlock) {
    const std::int64_t end = block + kSumBlock < size ? block + kSumBlock : size;
    Vec sums = zero;
    Vec products = zero;
    for (std::int64_t j = block; j < end; j += kLanes) {
      const Vec below = scaled_logits(row + j, size - j, inverse) - top;
      Vec p = exponential(below);
      if (size - j < kLanes) {
        p = select(lanes_between(0, size - j - 1), p, zero);
      }
      sums = sums + p;
      // Where p~ is 0 the product is 0 too, even for a logit of -infinity.
      products = products + select(p != zero, p * below, zero);
    }
    sum += double{sum_lanes(sums)};
    weighted += double{sum_lanes(products)};
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
}

}  // namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA
