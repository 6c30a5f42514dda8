// SPDX-License-Identifier: Apache-2.0
// The controller that moves a KL coefficient towards a wanted divergence.
#pragma once

#include "base/result.hpp"

namespace tidemill::engines {

struct AdaptiveKlOptions {
  double initial = 0.2;      // the coefficient before the first update; >= 0
  double target = 6.0;       // wanted divergence, in nats; > 0
  double horizon = 10000.0;  // samples over which an error of 1 is answered; > 0
  double clip = 0.2;         // largest error answered; >= 0
};

/// Checks ranges.
/// Errors: `bad_option`.
[[nodiscard]] Status validate(const AdaptiveKlOptions& options);

/// One observation for the controller.
struct KlObservation {
  double kl = 0.0;       // measured divergence, in nats
  double n_steps = 0.0;  // samples it was measured on
};

/// Returns `coefficient * (1 + clip(kl / target - 1, +-clip) * n_steps / horizon)`.
/// Source: Ziegler et al. 2019, arXiv:1909.08593, section 2.2.
/// Errors: `bad_option`, `non_finite`, `bad_count`, `non_finite_result`.
[[nodiscard]] Result<double> updated_kl_coefficient(double coefficient,
                                                    const KlObservation& observation,
                                                    const AdaptiveKlOptions& options);

}  // namespace tidemill::engines
