// SPDX-License-Identifier: Apache-2.0
#include "engines/rl/whiten.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "engines/rl/moments.hpp"
#include "engines/rl/refusal.hpp"

namespace tidemill::engines {

Status validate(const WhitenOptions& options) {
  if (options.ddof != 0 && options.ddof != 1) {
    return refuse(kBadOption, "ddof must be 0 or 1");
  }
  if (!std::isfinite(options.eps) || options.eps < 0.0) {
    return refuse(kBadOption, "eps must be finite and at least 0");
  }
  return {};
}

template <class Real>
void whiten(const TokenRows& rows, const WhitenOptions& options, std::span<Real> values) {
  std::vector<double> valid;
  for (std::size_t t = 0; t < values.size(); ++t) {
    if (rows.mask[t] != 0) {
      valid.push_back(values[t]);
    }
  }
  const Moments moments = moments_of(valid, options.ddof);
  const double floored = options.eps_mode == EpsMode::kAdd
                             ? moments.variance + options.eps
                             : std::max(moments.variance, options.eps);
  const double divisor = std::sqrt(floored);
  for (std::size_t t = 0; t < values.size(); ++t) {
    const bool zero = rows.mask[t] == 0 || moments.constant;
    values[t] = zero ? Real{0} : static_cast<Real>((values[t] - moments.mean) / divisor);
  }
}

template void whiten(const TokenRows&, const WhitenOptions&, std::span<float>);
template void whiten(const TokenRows&, const WhitenOptions&, std::span<double>);

}  // namespace tidemill::engines
