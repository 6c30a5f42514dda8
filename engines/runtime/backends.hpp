// SPDX-License-Identifier: Apache-2.0
// The backends that a runtime can compute with.
#pragma once

#include "engines/ops/backend.hpp"
#include "engines/runtime/runtime_options.hpp"

namespace tidemill::engines {

/// Returns the factory of `backend`.
[[nodiscard]] const BackendFactory& backend_factory(Backend backend);
/// Returns the factory that a runtime with `options` opens its device with.
[[nodiscard]] const BackendFactory& backend_factory(const RuntimeOptions& options);

/// Checks that training with `options` cuts sums over rows where `backend` keeps R2 (ops.hpp).
/// Errors: `kInvalidArgument` naming the option.
[[nodiscard]] Status check_cuts(const BackendFactory& backend, const RuntimeOptions& options);

}  // namespace tidemill::engines
