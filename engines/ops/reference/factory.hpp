// SPDX-License-Identifier: Apache-2.0
// The reference backend: plain loops on one thread, the oracle of every test.
#pragma once

#include <memory>

#include "engines/ops/ops.hpp"

namespace tidemill::engines {

/// Makes the reference backend. It sums inside a row in double precision and rounds once, so it is
/// both simple and more exact than any fast backend.
[[nodiscard]] std::unique_ptr<Ops> make_reference_ops();

}  // namespace tidemill::engines
