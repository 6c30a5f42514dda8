// SPDX-License-Identifier: Apache-2.0
// Runs commands of the program within the test process, on files in a temporary folder.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "launcher/commands/commands.hpp"
#include "launcher/program.hpp"
#include "tests/support/temporary_directory.hpp"

namespace tidemill::launcher {

/// Reads a JSON file.
inline nlohmann::json read_json(const std::string& path) {
  std::ifstream stream(path);
  return nlohmann::json::parse(stream);
}

/// The exit code and the output of a command.
struct Outcome {
  int code = 0;
  std::string out;
  std::string err;

  /// Parses each line of standard output as a JSON value.
  [[nodiscard]] std::vector<nlohmann::json> lines() const {
    std::vector<nlohmann::json> parsed;
    std::istringstream stream(out);
    for (std::string line; std::getline(stream, line);) {
      parsed.push_back(nlohmann::json::parse(line));
    }
    return parsed;
  }
};

class CommandTest : public ::testing::Test {
protected:
  [[nodiscard]] std::string path(const std::string& name) const { return folder_.path() / name; }

  /// Writes a file and returns its path.
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
    return path(name);
  }
  /// Writes one value per line and returns the path of the file.
  std::string write_lines(const std::string& name, const std::vector<nlohmann::json>& lines) const {
    std::string text;
    for (const auto& line : lines) {
      text += line.dump() + '\n';
    }
    return write(name, text);
  }

  static Outcome run(const std::vector<std::string>& arguments) {
    std::ostringstream out;
    std::ostringstream err;
    const int code = run_program(arguments, all_commands(), out, err);
    return {code, out.str(), err.str()};
  }

private:
  test::TemporaryDirectory folder_;
};

}  // namespace tidemill::launcher
