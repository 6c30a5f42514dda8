// SPDX-License-Identifier: Apache-2.0
// Keeps the paths of a server's directories out of messages that leave the machine.
#pragma once

#include <filesystem>

#include "base/status.hpp"

namespace tidemill {

/// Returns `status` without `directory` and the slash after it wherever its message names them.
[[nodiscard]] Status without_directory(const Status& status,
                                       const std::filesystem::path& directory);

}  // namespace tidemill
