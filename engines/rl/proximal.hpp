// SPDX-License-Identifier: Apache-2.0
// An approximation of proximal log-probabilities that needs no second forward pass.
#pragma once

#include <cstdint>
#include <span>

#include "engines/rl/token_rows.hpp"

namespace tidemill::engines {

/// The columns that the approximation reads.
template <class Real>
struct LogLinearInputs {
  TokenRows rows;
  std::span<const Real> logprobs;                   // (N)
  std::span<const Real> behavior_logprobs;          // (N)
  std::span<const std::int64_t> behavior_versions;  // (N); negative if not generated
  std::int64_t current_version = 0;
};

/// The outputs of the approximation. Borrows: all spans.
template <class Real>
struct LogLinearOutputs {
  std::span<Real> alpha;              // (N)
  std::span<Real> proximal_logprobs;  // (N), constants for the loss
};

/// Computes `proximal = behavior + alpha * (logprob - behavior)`.
///
/// The proximal policy is the version before the current one, v - 1:
/// `alpha = clip((v - 1 - v_b) / (v - v_b), 0, 1)` for tokens of versions 0 <= v_b < v, and 0 for
/// all others.
/// Source: A-3PO, arXiv:2512.06547.
/// Errors: `bad_shape`, `bad_mask`, `non_finite` naming row and token, `non_finite_result`.
template <class Real>
[[nodiscard]] Status proximal_log_linear(const LogLinearInputs<Real>& inputs,
                                         const LogLinearOutputs<Real>& out);

}  // namespace tidemill::engines
