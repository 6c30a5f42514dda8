// SPDX-License-Identifier: Apache-2.0
// Scripts that let a shell complete command lines of the program.
#pragma once

#include <string>
#include <vector>

namespace tidemill::launcher {

/// What stands at one place of a command line.
enum class CompletedKind : std::uint8_t {
  kNothing,   // a switch, which has no value
  kText,      // anything: nothing can be offered
  kNames,     // one of `names`
  kFile,      // a file
  kYaml,      // a run's file
  kFolder,    // a directory
  kRun,       // a run's directory
  kKey,       // a key of a run's file
  kOverride,  // `key=value`
};

struct CompletedValue {
  CompletedKind kind = CompletedKind::kText;
  std::vector<std::string> names;
};

struct CompletedOption {
  std::string name;  // "--json"
  std::string help;
  CompletedValue value;
};

struct CompletedCommand {
  std::string name;
  std::string help;
  std::vector<CompletedOption> options;
  std::vector<CompletedValue> places;  // arguments; the last may stand again
};

/// A key of a run's file that an argument may set.
struct CompletedKey {
  std::string path;
  std::string help;
  std::vector<std::string> workflows;
  std::vector<std::string> names;  // those it may have, if it is one that chooses
};

/// All that can be completed.
struct CompletionFacts {
  std::vector<CompletedCommand> commands;
  std::vector<CompletedKey> keys;
};

/// Each returns a script for the shell to read. What it offers for `key=value` follows the workflow
/// that the file before it names.
[[nodiscard]] std::string bash_completion(const CompletionFacts& facts);
[[nodiscard]] std::string zsh_completion(const CompletionFacts& facts);
[[nodiscard]] std::string fish_completion(const CompletionFacts& facts);

}  // namespace tidemill::launcher
