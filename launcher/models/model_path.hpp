// SPDX-License-Identifier: Apache-2.0
// Checks the argument MODEL of commands.
#pragma once

#include <string>

#include "base/status.hpp"

namespace tidemill::launcher {

/// Checks that a file or directory with the name `model` exists, and that it is not the directory
/// of a run or of an adapter.
/// Errors: `kNotFound`; `kInvalidArgument` for a run, with the directory that holds its weights,
/// and for an adapter, with the way to use it.
[[nodiscard]] Status check_model_path(const std::string& model);

}  // namespace tidemill::launcher
