// SPDX-License-Identifier: Apache-2.0
// The backends that a runtime can compute with.
#pragma once

#include "engines/ops/backend.hpp"
#include "engines/runtime/runtime_options.hpp"

namespace tidemill::engines {

/// Returns the factory of `backend`.
[[nodiscard]] const BackendFactory& backend_factory(Backend backend);

}  // namespace tidemill::engines
