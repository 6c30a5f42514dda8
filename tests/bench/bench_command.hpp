// SPDX-License-Identifier: Apache-2.0
// Runs one command of `tidemill-bench` within the test process.
#pragma once

#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "bench/commands.hpp"
#include "launcher/command.hpp"
#include "launcher/program.hpp"
#include "tests/launcher/command_run.hpp"

namespace tidemill::bench {

/// Runs a command with these arguments, without its name.
inline launcher::Outcome run_command(std::unique_ptr<launcher::Command> command,
                                     std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), command->name());
  std::ostringstream out;
  std::ostringstream err;
  std::vector<std::unique_ptr<launcher::Command>> commands;
  commands.push_back(std::move(command));
  const int code = launcher::run_program(arguments, commands, out, err);
  return {code, out.str(), err.str()};
}

}  // namespace tidemill::bench
