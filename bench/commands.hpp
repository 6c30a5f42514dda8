// SPDX-License-Identifier: Apache-2.0
// The commands of `tidemill-bench`.
#pragma once

#include <memory>

#include "launcher/command.hpp"

namespace tidemill::bench {

/// Makes the command `engine`, which measures the engine on this machine.
[[nodiscard]] std::unique_ptr<launcher::Command> make_engine_command();

}  // namespace tidemill::bench
