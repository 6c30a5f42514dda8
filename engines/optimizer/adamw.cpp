// SPDX-License-Identifier: Apache-2.0
#include "engines/optimizer/adamw.hpp"

#include <cmath>
#include <cstddef>

#include "base/check.hpp"

namespace tidemill::engines {

Status validate(const AdamWOptions& options) {
  const auto is_decay = [](double beta) { return beta >= 0.0 && beta < 1.0; };
  if (!is_decay(options.beta1) || !is_decay(options.beta2)) {
    return invalid_argument("beta1 and beta2 must be in [0, 1)");
  }
  if (!std::isfinite(options.eps) || options.eps <= 0.0) {
    return invalid_argument("eps must be finite and above 0");
  }
  return {};
}

template <class Real>
void adamw_update(const AdamWOptions& options, const AdamWStep& step,
                  const AdamWTensor<Real>& tensor) {
  const std::size_t size = tensor.weights.size();
  TIDEMILL_CHECK(tensor.gradient.size() == size && tensor.first_moment.size() == size &&
                 tensor.second_moment.size() == size && step.step >= 1);
  const auto t = static_cast<double>(step.step);
  const double correction1 = 1.0 - std::pow(options.beta1, t);
  const double correction2 = 1.0 - std::pow(options.beta2, t);
  const auto keep = static_cast<Real>(1.0 - step.learning_rate * step.weight_decay);
  const auto scale = static_cast<Real>(step.gradient_scale);
  const auto beta1 = static_cast<Real>(options.beta1);
  const auto rest1 = static_cast<Real>(1.0 - options.beta1);
  const auto beta2 = static_cast<Real>(options.beta2);
  const auto rest2 = static_cast<Real>(1.0 - options.beta2);
  const auto rate = static_cast<Real>(step.learning_rate / correction1);
  const auto root2 = static_cast<Real>(std::sqrt(correction2));
  const auto eps = static_cast<Real>(options.eps);
  Real* const weights = tensor.weights.data();
  const Real* const gradient = tensor.gradient.data();
  Real* const first = tensor.first_moment.data();
  Real* const second = tensor.second_moment.data();
  for (std::size_t i = 0; i < size; ++i) {
    const Real g = gradient[i] * scale;
    const Real m = beta1 * first[i] + rest1 * g;
    const Real v = beta2 * second[i] + rest2 * g * g;
    first[i] = m;
    second[i] = v;
    weights[i] = weights[i] * keep - rate * (m / (std::sqrt(v) / root2 + eps));
  }
}

template void adamw_update(const AdamWOptions&, const AdamWStep&, const AdamWTensor<float>&);
template void adamw_update(const AdamWOptions&, const AdamWStep&, const AdamWTensor<double>&);

}  // namespace tidemill::engines
