// SPDX-License-Identifier: Apache-2.0
// One step of AdamW. No multiply-add is fused, so every instruction set gives the bits of
// `adamw_update`.
#include <cstdint>

#include "engines/ops/cpu/isa_kernels.hpp"
#include "engines/ops/cpu/kernels.hpp"
#include "engines/ops/cpu/vec.hpp"

namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA {
namespace {

void adamw(const AdamWFactors<float>& factors, const AdamWTensor<float>& tensor) {
  const Vec keep = broadcast(factors.keep);
  const Vec scale = broadcast(factors.scale);
  const Vec beta1 = broadcast(factors.beta1);
  const Vec rest1 = broadcast(factors.rest1);
  const Vec beta2 = broadcast(factors.beta2);
  const Vec rest2 = broadcast(factors.rest2);
  const Vec rate = broadcast(factors.rate);
  const Vec root2 = broadcast(factors.root2);
  const Vec epsilon = broadcast(factors.epsilon);
  float* const weights = tensor.weights.data();
  float* const first = tensor.first_moment.data();
  float* const second = tensor.second_moment.data();
  const auto size = static_cast<std::int64_t>(tensor.weights.size());
  for (std::int64_t i = 0; i < size; i += kLanes) {
    const std::int64_t count = size - i;
    const Vec g = load_some(tensor.gradient.data() + i, count) * scale;
    const Vec m = beta1 * load_some(first + i, count) + rest1 * g;
    const Vec v = beta2 * load_some(second + i, count) + rest2 * g * g;
    store_some(first + i, m, count);
    store_some(second + i, v, count);
    const Vec step = rate * (m / (square_root(v) / root2 + epsilon));
    store_some(weights + i, load_some(weights + i, count) * keep - step, count);
  }
}

}  // namespace

void add_optimizer_kernels(KernelTable& table) noexcept {
  table.adamw = adamw;
}

}  // namespace tidemill::engines::cpu::TIDEMILL_CPU_ISA
