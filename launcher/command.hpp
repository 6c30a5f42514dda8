// SPDX-License-Identifier: Apache-2.0
// What a command of the program is, and what it is given.
#pragma once

#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/status.hpp"

namespace CLI {  // NOLINT(readability-identifier-naming): the library's own name
class App;
}  // namespace CLI

namespace tidemill::launcher {

/// What the program ends with; `tidemill --help` lists them.
enum ExitCode : int {
  kDone = 0,
  kFailed = 1,   // the work failed: disk, memory, time, a worker
  kRefused = 2,  // the command line, or what it names, cannot be used
};

/// Returns the exit code of a command that ended with `status`.
[[nodiscard]] ExitCode exit_code(const Status& status);

/// Whether results are texts for people or one JSON object a line for programs.
enum class OutputForm : std::uint8_t { kText, kJson };

struct Additions;

/// What a command works with. Built by the program, borrowed by the command.
struct Session {
  std::ostream& out;  // results
  std::ostream& err;  // warnings and progress
  Log& log;
  const Clock& clock;
  const Additions& additions;  // of an embedding program; see additions.hpp
  OutputForm form = OutputForm::kText;
  std::vector<std::string> arguments;  // as typed; the first is number 1
};

/// One command: `tidemill NAME ...`. To add one, write a file with a class like this and list it in
/// commands.cpp.
class Command {
public:
  Command() = default;
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;
  virtual ~Command() = default;

  [[nodiscard]] virtual std::string name() const = 0;
  /// Returns one line that says what it does.
  [[nodiscard]] virtual std::string summary() const = 0;
  /// Returns a command line that shows it at work.
  [[nodiscard]] virtual std::string example() const = 0;
  /// Adds arguments and options, bound to this object. `--json` is there already.
  virtual void declare(CLI::App& app) = 0;
  /// Does the work. On failure the program prints the status's line and ends with `exit_code`.
  [[nodiscard]] virtual Status run(Session& session) = 0;
};

}  // namespace tidemill::launcher
