// SPDX-License-Identifier: Apache-2.0
// The entropy bonus: a loss term that rewards a policy for high entropy.
#pragma once

#include <cstddef>
#include <span>

#include "base/result.hpp"
#include "engines/rl/aggregate.hpp"
#include "engines/rl/token_rows.hpp"

namespace tidemill::engines {

/// The logits that `entropy_bonus` reads.
template <class Real>
struct EntropyInputs {
  TokenRows rows;
  std::span<const Real> logits;  // (N, V), finite where the mask is set
  std::size_t vocabulary = 0;    // V >= 1
};

/// Configures `entropy_bonus`.
struct EntropyOptions {
  double coefficient = 0.01;
  AggregateOptions aggregate;
};

/// The outputs of `entropy_bonus`. Borrows: all spans.
template <class Real>
struct EntropyOutputs {
  std::span<Real> entropy;   // (N) in nats
  std::span<Real> gradient;  // (N, V) of the loss with respect to the logits
};

/// Computes `H = -sum p log p` for each token and returns `-coefficient * aggregate(H)`.
/// Errors: `bad_shape`, `bad_mask`, `bad_option`, `non_finite` naming row and token,
/// `non_finite_result`.
template <class Real>
[[nodiscard]] Result<double> entropy_bonus(const EntropyInputs<Real>& inputs,
                                           const EntropyOptions& options,
                                           const EntropyOutputs<Real>& out);

}  // namespace tidemill::engines
