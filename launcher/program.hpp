// SPDX-License-Identifier: Apache-2.0
// The `tidemill` program without `main`: finds the command, runs it, and reports how it ended.
#pragma once

#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#include "launcher/additions.hpp"
#include "launcher/command.hpp"

namespace tidemill::launcher {

/// The options that all commands share.
struct SharedOptions {
  bool json = false;
  std::string log_level = "info";
};

/// Adds the options of `command` and the shared ones to `app`, bound to `command` and `shared`.
void declare_options(Command& command, SharedOptions& shared, CLI::App& app);

/// Runs the program with `arguments`, which do not include the program's name, and returns the exit
/// code.
///
/// Results go to `out`. On failure one line goes to `err`. With `--json`, `{"error": "..."}` goes
/// to `out`, too. `additions` are those of the embedding program.
[[nodiscard]] int run_program(const std::vector<std::string>& arguments,
                              const std::vector<std::unique_ptr<Command>>& commands,
                              std::ostream& out, std::ostream& err,
                              const Additions& additions = {});

}  // namespace tidemill::launcher
