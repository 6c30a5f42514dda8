// SPDX-License-Identifier: Apache-2.0
// The `tidemill-bench` program: benchmarks that the product does not contain.
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "bench/commands.hpp"
#include "launcher/program.hpp"

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
  std::vector<std::unique_ptr<tidemill::launcher::Command>> commands;
  commands.push_back(tidemill::bench::make_actors_command());
  commands.push_back(tidemill::bench::make_engine_command());
  commands.push_back(tidemill::bench::make_serve_command());
  commands.push_back(tidemill::bench::make_store_command());
  commands.push_back(tidemill::bench::make_transport_command());
  commands.push_back(tidemill::bench::make_weights_command());
  return tidemill::launcher::run_program(arguments, commands, std::cout, std::cerr);
}
