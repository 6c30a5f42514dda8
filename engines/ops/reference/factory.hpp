// SPDX-License-Identifier: Apache-2.0
// The reference backend: plain loops on one thread, the oracle of every test.
#pragma once

#include <memory>

#include "engines/ops/backend.hpp"
#include "engines/ops/host/host_ops.hpp"
#include "engines/ops/ops.hpp"

namespace tidemill::engines {

/// Creates the reference backend. It sums within a row in double precision and rounds once, which
/// makes it both simpler and more exact than any fast backend.
[[nodiscard]] std::unique_ptr<Ops> make_reference_ops();
/// Creates its operations on host memory.
[[nodiscard]] std::unique_ptr<host::Ops> make_reference_host_ops();
/// The factory of the reference backend.
[[nodiscard]] const BackendFactory& reference_backend();

}  // namespace tidemill::engines
