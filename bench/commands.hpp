// SPDX-License-Identifier: Apache-2.0
// The commands of `tidemill-bench`.
#pragma once

#include <memory>

#include "launcher/command.hpp"

namespace tidemill::bench {

/// Makes the command `actors`, which measures the actors of a run.
[[nodiscard]] std::unique_ptr<launcher::Command> make_actors_command();

/// Makes the command `engine`, which measures the engine on this machine.
[[nodiscard]] std::unique_ptr<launcher::Command> make_engine_command();

/// Makes the command `serve`, which measures a running server.
[[nodiscard]] std::unique_ptr<launcher::Command> make_serve_command();

/// Makes the command `store`, which measures the control plane of a stream.
[[nodiscard]] std::unique_ptr<launcher::Command> make_store_command();

/// Makes the command `transport`, which measures messages between processes.
[[nodiscard]] std::unique_ptr<launcher::Command> make_transport_command();

/// Makes the command `weights`, which measures how weights get to other processes.
[[nodiscard]] std::unique_ptr<launcher::Command> make_weights_command();

}  // namespace tidemill::bench
