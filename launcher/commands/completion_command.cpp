// SPDX-License-Identifier: Apache-2.0
// `tidemill completion`: prints a script with which a shell completes the program's command lines.
#include <CLI/App.hpp>
#include <algorithm>
#include <ostream>
#include <sstream>

#include "base/schema/reference.hpp"
#include "launcher/additions.hpp"
#include "launcher/commands/commands.hpp"
#include "launcher/commands/completion_script.hpp"
#include "launcher/option_checks.hpp"
#include "launcher/program.hpp"

namespace tidemill::launcher {
namespace {

// Returns the name in an entry "name: help" of a key's reference.
std::string name_of(const std::string& entry) {
  return entry.substr(0, entry.find(": "));
}

// Returns what to offer for an argument, by its name, or for the value of an option, by its type.
CompletedValue value_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const std::string word = option.nonpositional() ? type : option.get_name(/*positional=*/true);
  if (option.nonpositional() && option.get_items_expected_max() == 0) {
    return {CompletedKind::kNothing, {}};
  }
  if (type.find('|') != std::string::npos) {  // set by `accept_names`
    CompletedValue value{CompletedKind::kNames, {}};
    std::istringstream names(type);
    for (std::string name; std::getline(names, name, '|');) {
      value.names.push_back(name);
    }
    return value;
  }
  if (word == "FILE") {
    return {option.nonpositional() ? CompletedKind::kFile : CompletedKind::kYaml, {}};
  }
  const CompletedKind kind = word == "DIR" || word == "MODEL"    ? CompletedKind::kFolder
                             : word == "RUN" || word == "SOURCE" ? CompletedKind::kRun
                             : word == "KEY"                     ? CompletedKind::kKey
                             : word == "KEY=VALUE"               ? CompletedKind::kOverride
                                                                 : CompletedKind::kText;
  return {kind, {}};
}

CompletedCommand facts_of(Command& command) {
  SharedOptions shared;
  CLI::App app;
  declare_options(command, shared, app);
  CompletedCommand out{command.name(), command.summary(), {}, {}};
  for (const CLI::Option* option : app.get_options()) {
    if (!option->nonpositional()) {
      out.arguments.push_back(value_of(*option));
      continue;
    }
    for (const std::string& name : option->get_lnames()) {
      out.options.push_back({"--" + name, option->get_description(), value_of(*option)});
    }
  }
  return out;
}

std::vector<CompletedKey> all_keys(const schema::StructSchema& root) {
  std::vector<std::string> workflows;
  for (const schema::KindSchema& kind : root.tag->kinds) {
    workflows.push_back(kind.name);
  }
  std::vector<CompletedKey> keys;
  for (const KeyReference& key : list_keys(root)) {
    const bool only_keys = key.has_keys && key.type == "keys and values";
    if (only_keys || key.path.find("[]") != std::string::npos) {
      continue;  // an argument cannot set this key
    }
    constexpr std::string_view kChoice = "workflow: ";
    const auto choice = std::find_if(key.when.begin(), key.when.end(),
                                     [&](const auto& when) { return when.starts_with(kChoice); });
    const std::vector<std::string> of =
        choice == key.when.end() ? workflows : std::vector{choice->substr(kChoice.size())};
    auto known = std::find_if(keys.begin(), keys.end(),
                              [&key](const CompletedKey& k) { return k.path == key.path; });
    if (known == keys.end()) {
      known = keys.insert(keys.end(), {key.path, key.help, {}, {}});
      std::transform(key.names.begin(), key.names.end(), std::back_inserter(known->names), name_of);
      if (key.type == "true or false") {
        known->names = {"true", "false"};
      }
    }
    for (const std::string& workflow : of) {
      if (std::find(known->workflows.begin(), known->workflows.end(), workflow) ==
          known->workflows.end()) {
        known->workflows.push_back(workflow);
      }
    }
  }
  return keys;
}

class CompletionCommand final : public Command {
public:
  [[nodiscard]] std::string name() const override { return "completion"; }
  [[nodiscard]] std::string summary() const override { return "Prints a shell completion script"; }
  [[nodiscard]] std::string example() const override {
    return "tidemill completion bash > ~/.local/share/bash-completion/completions/tidemill";
  }

  void declare(CLI::App& app) override {
    accept_names(*app.add_option("SHELL", shell_, "bash, zsh or fish")->required()->type_name(""),
                 {"bash", "zsh", "fish"});
  }

  [[nodiscard]] Status run(Session& session) override {
    TIDEMILL_ASSIGN_OR_RETURN(const auto schema, run_schema(session));
    CompletionFacts facts;
    for (const auto& command : all_commands()) {
      if (!command->hidden()) {
        facts.commands.push_back(facts_of(*command));
      }
    }
    facts.keys = all_keys(schema.structure());
    session.out << (shell_ == "bash"  ? bash_completion(facts)
                    : shell_ == "zsh" ? zsh_completion(facts)
                                      : fish_completion(facts));
    return {};
  }

private:
  std::string shell_;
};

}  // namespace

std::unique_ptr<Command> make_completion_command() {
  return std::make_unique<CompletionCommand>();
}

}  // namespace tidemill::launcher
