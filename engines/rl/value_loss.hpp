// SPDX-License-Identifier: Apache-2.0
// The loss of a value function.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/result.hpp"
#include "engines/rl/aggregate.hpp"
#include "engines/rl/token_rows.hpp"

namespace tidemill::engines {

/// The columns that `value_loss` reads.
template <class Real>
struct ValueLossInputs {
  TokenRows rows;
  std::span<const Real> values;      // (N) current
  std::span<const Real> old_values;  // (N) at the start of the update; read only if `clip` is set
  std::span<const Real> returns;     // (N)
};

/// Configures `value_loss`.
struct ValueLossOptions {
  /// If set, values are clipped to within +- this of the old values.
  std::optional<double> clip = 0.2;
  AggregateOptions aggregate;
};

/// The loss and its metrics.
struct ValueLossReport {
  double loss = 0.0;
  std::int64_t tokens = 0;
  std::int64_t clipped_tokens = 0;  // tokens whose clipped error is strictly larger
};

/// Computes `0.5 * aggregate(max((v - R)^2, (clip(v, v_old - c, v_old + c) - R)^2))` and writes its
/// gradient with respect to `values` (N).
/// Source: Schulman et al. 2017, arXiv:1707.06347, with the clipping of OpenAI's baselines.
/// Errors: `bad_shape`, `bad_mask`, `bad_option`, `non_finite` naming row and token,
/// `non_finite_result`.
template <class Real>
[[nodiscard]] Result<ValueLossReport> value_loss(const ValueLossInputs<Real>& inputs,
                                                 const ValueLossOptions& options,
                                                 std::span<Real> gradient);

}  // namespace tidemill::engines
