// SPDX-License-Identifier: Apache-2.0
#include "engines/rl/adaptive_kl.hpp"

#include <algorithm>
#include <cmath>

#include "engines/rl/refusal.hpp"

namespace tidemill::engines {

Status validate(const AdaptiveKlOptions& options) {
  if (!std::isfinite(options.initial) || options.initial < 0.0) {
    return refuse(kBadOption, "initial must be finite and at least 0");
  }
  if (!std::isfinite(options.target) || options.target <= 0.0) {
    return refuse(kBadOption, "target must be finite and above 0");
  }
  if (!std::isfinite(options.horizon) || options.horizon <= 0.0) {
    return refuse(kBadOption, "horizon must be finite and above 0");
  }
  if (!std::isfinite(options.clip) || options.clip < 0.0) {
    return refuse(kBadOption, "clip must be finite and at least 0");
  }
  return {};
}

Result<double> updated_kl_coefficient(double coefficient, const KlObservation& observation,
                                      const AdaptiveKlOptions& options) {
  TIDEMILL_RETURN_IF_ERROR(validate(options));
  if (!std::isfinite(coefficient) || !std::isfinite(observation.kl)) {
    return refuse(kNonFinite, "the coefficient or the observed kl is not finite");
  }
  if (!std::isfinite(observation.n_steps) || observation.n_steps < 0.0) {
    return refuse(kBadCount, "n_steps must be finite and at least 0");
  }
  const double error =
      std::clamp(observation.kl / options.target - 1.0, -options.clip, options.clip);
  const double updated = coefficient * (1.0 + error * observation.n_steps / options.horizon);
  if (!std::isfinite(updated)) {
    return refuse(kNonFiniteResult, "the coefficient overflows");
  }
  return updated;
}

}  // namespace tidemill::engines
