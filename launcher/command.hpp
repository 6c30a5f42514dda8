// SPDX-License-Identifier: Apache-2.0
// The interface of commands, and the session in which they run.
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

/// The exit codes of the program. `tidemill --help` lists them. If a signal ends the program, the
/// exit code is 128 plus the number of the signal.
enum ExitCode : int {
  kDone = 0,
  kFailed = 1,   // the work failed, for example because the disk is full
  kRefused = 2,  // the command line or a file it names cannot be used
};

/// Returns the exit code of a command that ended with `status`.
[[nodiscard]] ExitCode exit_code(const Status& status);

/// The form of results: text for people, or one JSON object per line for programs.
enum class OutputForm : std::uint8_t { kText, kJson };

struct Additions;

/// The objects that a command works with. The program creates them; the command borrows them.
struct Session {
  std::ostream& out;  // results
  std::ostream& err;  // warnings and progress
  Log& log;
  const Clock& clock;
  const Additions& additions;  // of the embedding program; see additions.hpp
  OutputForm form = OutputForm::kText;
  std::vector<std::string> arguments;  // as typed; error messages count them from 1
};

/// A command of the program: `tidemill NAME ...`. To add a command, derive a class in a new file
/// and list it in commands.cpp.
class Command {
public:
  Command() = default;
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;
  virtual ~Command() = default;

  /// Returns the word that selects the command.
  [[nodiscard]] virtual std::string name() const = 0;
  /// Returns one line that says what the command does.
  [[nodiscard]] virtual std::string summary() const = 0;
  /// Returns an example command line.
  [[nodiscard]] virtual std::string example() const = 0;
  /// Returns whether help and completion leave the command out, because only programs use it.
  [[nodiscard]] virtual bool hidden() const { return false; }
  /// Adds arguments and options to `app` and binds them to this object. `--json` has been added
  /// already.
  virtual void declare(CLI::App& app) = 0;
  /// Does the work. On failure the program prints the message of the status and exits with
  /// `exit_code(status)`.
  [[nodiscard]] virtual Status run(Session& session) = 0;
};

}  // namespace tidemill::launcher
