// SPDX-License-Identifier: Apache-2.0
// The `tidemill` program.
#include <iostream>
#include <string>
#include <vector>

#include "launcher/commands/commands.hpp"
#include "launcher/program.hpp"

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
  return tidemill::launcher::run_program(arguments, tidemill::launcher::all_commands(), std::cout,
                                         std::cerr);
}
