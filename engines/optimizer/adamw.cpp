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
  if (!std::isfinite(options.epsilon) || options.epsilon <= 0.0) {
    return invalid_argument("epsilon must be finite and above 0");
  }
  return {};
}

template <class Real>
AdamWFactors<Real> adamw_factors(const AdamWOptions& options, const AdamWStep& step) {
  TIDEMILL_CHECK(step.step >= 1) << step.step;
  const auto t = static_cast<double>(step.step);
  AdamWFactors<Real> factors;
  factors.keep = static_cast<Real>(1.0 - step.learning_rate * step.weight_decay);
  factors.scale = static_cast<Real>(step.gradient_scale);
  factors.beta1 = static_cast<Real>(options.beta1);
  factors.rest1 = static_cast<Real>(1.0 - options.beta1);
  factors.beta2 = static_cast<Real>(options.beta2);
  factors.rest2 = static_cast<Real>(1.0 - options.beta2);
  factors.rate = static_cast<Real>(step.learning_rate / (1.0 - std::pow(options.beta1, t)));
  factors.root2 = static_cast<Real>(std::sqrt(1.0 - std::pow(options.beta2, t)));
  factors.epsilon = static_cast<Real>(options.epsilon);
  return factors;
}

template <class Real>
void adamw_update(const AdamWFactors<Real>& factors, const AdamWTensor<Real>& tensor) {
  const std::size_t size = tensor.weights.size();
  TIDEMILL_CHECK(tensor.gradient.size() == size && tensor.first_moment.size() == size &&
                 tensor.second_moment.size() == size);
  const AdamWFactors<Real> f = factors;
  Real* const weights = tensor.weights.data();
  const Real* const gradient = tensor.gradient.data();
  Real* const first = tensor.first_moment.data();
  Real* const second = tensor.second_moment.data();
  for (std::size_t i = 0; i < size; ++i) {
    const Real g = gradient[i] * f.scale;
    const Real m = f.beta1 * first[i] + f.rest1 * g;
    const Real v = f.beta2 * second[i] + f.rest2 * g * g;
    first[i] = m;
    second[i] = v;
    weights[i] = weights[i] * f.keep - f.rate * (m / (std::sqrt(v) / f.root2 + f.epsilon));
  }
}

template AdamWFactors<float> adamw_factors(const AdamWOptions&, const AdamWStep&);
template AdamWFactors<double> adamw_factors(const AdamWOptions&, const AdamWStep&);
template void adamw_update(const AdamWFactors<float>&, const AdamWTensor<float>&);
template void adamw_update(const AdamWFactors<double>&, const AdamWTensor<double>&);

}  // namespace tidemill::engines
