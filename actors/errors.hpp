// SPDX-License-Identifier: Apache-2.0
// The border between our failures and CAF's: exactly two functions.
#pragma once

#include <caf/error.hpp>

#include "base/status.hpp"

namespace tidemill::actors {

/// Turns a failure into an answer; `status` must not be `ok()`.
[[nodiscard]] caf::error to_caf_error(const Status& status);

/// Turns an error of ours, or of CAF (a timeout, a dead receiver), into a failure.
[[nodiscard]] Status from_caf_error(const caf::error& error);

}  // namespace tidemill::actors
