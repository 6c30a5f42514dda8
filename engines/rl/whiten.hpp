// SPDX-License-Identifier: Apache-2.0
// Whitening of a column over the valid tokens of a batch.
#pragma once

#include <cstdint>
#include <span>

#include "engines/rl/token_rows.hpp"

namespace tidemill::engines {

/// How `eps` guards the variance.
enum class EpsMode : std::uint8_t {
  kAdd,  // var + eps
  kMax,  // max(var, eps)
};

/// Configures the whitening of a column.
struct WhitenOptions {
  /// The variance divides by n - ddof; 0 or 1.
  int ddof = 1;
  double eps = 1e-8;
  EpsMode eps_mode = EpsMode::kAdd;
};

/// Checks that the options are in range.
/// Errors: `bad_option`.
[[nodiscard]] Status validate(const WhitenOptions& options);

/// Replaces valid values with `(x - mean) / sqrt(var + eps)`, or divides by `sqrt(max(var, eps))`
/// instead if `eps_mode` is `kMax`.
///
/// A constant column, or a single valid value, becomes exactly 0. Masked positions become 0.
/// Shapes: `values` (N). Requires valid `rows` and `options`, and finite valid values.
template <class Real>
void whiten(const TokenRows& rows, const WhitenOptions& options, std::span<Real> values);

}  // namespace tidemill::engines
