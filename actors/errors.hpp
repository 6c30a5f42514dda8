// SPDX-License-Identifier: Apache-2.0
// Converts between `Status` and `caf::error`. All conversions go through these two functions.
#pragma once

#include <caf/error.hpp>

#include "base/status.hpp"

namespace tidemill::actors {

/// Returns the error that an actor replies or exits with for `status`, which must not be `ok()`.
[[nodiscard]] caf::error to_caf_error(const Status& status);

/// Returns the status of an error that `to_caf_error` made, or that CAF made (a timeout, a
/// terminated receiver). An empty error gives `ok()`.
[[nodiscard]] Status from_caf_error(const caf::error& error);

}  // namespace tidemill::actors
