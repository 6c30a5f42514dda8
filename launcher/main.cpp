// SPDX-License-Identifier: Apache-2.0
// The `tidemill` program.
#include <iostream>
#include <string>
#include <vector>

#include "launcher/commands/commands.hpp"
#include "launcher/process_start.hpp"
#include "launcher/program.hpp"

int main(int argc, char** argv) {
  tidemill::launcher::open_standard_streams();
  tidemill::launcher::end_on_exhaustion();
  tidemill::launcher::ignore_file_size_signal();
  tidemill::launcher::return_large_blocks();
  if (const tidemill::Status limits = tidemill::launcher::apply_limits(); !limits.ok()) {
    std::cerr << limits.message() << '\n';
    return tidemill::launcher::exit_code(limits);
  }
  const std::vector<std::string> arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
  return tidemill::launcher::run_program(arguments, tidemill::launcher::all_commands(), std::cout,
                                         std::cerr);
}
