// SPDX-License-Identifier: Apache-2.0
// Writes scripts with which shells complete command lines of the program.
#pragma once

#include <string>
#include <vector>

namespace tidemill::launcher {

/// What an argument or the value of an option is.
enum class CompletedKind : std::uint8_t {
  kNothing,   // no value: the option is a flag
  kText,      // any text, so nothing can be offered
  kNames,     // one of `names`
  kFile,      // a file
  kYaml,      // a run's file
  kFolder,    // a directory
  kRun,       // a run's directory
  kKey,       // a key of a run's file
  kOverride,  // `key=value`
};

/// An argument, or the value of an option.
struct CompletedValue {
  CompletedKind kind = CompletedKind::kText;
  std::vector<std::string> names;
};

/// An option of a command.
struct CompletedOption {
  std::string name;  // "--json"
  std::string help;
  CompletedValue value;
};

/// A command of the program.
struct CompletedCommand {
  std::string name;
  std::string help;
  std::vector<CompletedOption> options;
  std::vector<CompletedValue> arguments;  // in order; the last one may be repeated
};

/// A key of a run's file that an argument `key=value` may set.
struct CompletedKey {
  std::string path;
  std::string help;
  std::vector<std::string> workflows;
  std::vector<std::string> names;  // its values, if it has a fixed set of them
};

/// Everything that can be completed.
struct CompletionFacts {
  std::vector<CompletedCommand> commands;
  std::vector<CompletedKey> keys;
};

/// Each function returns a script for its shell to source. For an argument `key=value`, the script
/// offers the keys of the workflow that the preceding file names.
[[nodiscard]] std::string bash_completion(const CompletionFacts& facts);
[[nodiscard]] std::string zsh_completion(const CompletionFacts& facts);
[[nodiscard]] std::string fish_completion(const CompletionFacts& facts);

}  // namespace tidemill::launcher
