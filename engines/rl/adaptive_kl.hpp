// SPDX-License-Identifier: Apache-2.0
// A controller that adjusts a KL coefficient until the divergence reaches a target.
#pragma once

#include "base/result.hpp"

namespace tidemill::engines {

/// Configures `updated_kl_coefficient`.
struct AdaptiveKlOptions {
  double initial = 0.2;      // the coefficient before the first update; >= 0
  double target = 6.0;       // target divergence, in nats; > 0
  double horizon = 10000.0;  // samples after which a clipped error e gives the factor 1 + e; > 0
  double clip = 0.2;         // bound on the relative error kl / target - 1; >= 0
};

/// Checks that the options are in range.
/// Errors: `bad_option`.
[[nodiscard]] Status validate(const AdaptiveKlOptions& options);

/// One measurement of the divergence.
struct KlObservation {
  double kl = 0.0;       // measured divergence, in nats
  double n_steps = 0.0;  // number of samples it was measured on
};

/// Returns `coefficient * (1 + clip(kl / target - 1, +-clip) * n_steps / horizon)`.
/// Source: Ziegler et al. 2019, arXiv:1909.08593, section 2.2.
/// Errors: `bad_option`, `non_finite`, `bad_count`, `non_finite_result`.
[[nodiscard]] Result<double> updated_kl_coefficient(double coefficient,
                                                    const KlObservation& observation,
                                                    const AdaptiveKlOptions& options);

}  // namespace tidemill::engines
