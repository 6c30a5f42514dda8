// SPDX-License-Identifier: Apache-2.0
#include "launcher/runs/run_file.hpp"

#include <CLI/App.hpp>
#include <algorithm>
#include <cerrno>
#include <unistd.h>

#include "base/files/file.hpp"
#include "configs/load.hpp"
#include "configs/yaml_tree.hpp"
#include "launcher/additions.hpp"

namespace tidemill::launcher {

namespace {

// Reads standard input to its end, or until there are `max_bytes`.
Result<std::string> read_stdin(std::size_t max_bytes) {
  std::string text(max_bytes, '\0');
  std::size_t size = 0;
  while (size < max_bytes) {
    const ssize_t count = ::read(STDIN_FILENO, text.data() + size, max_bytes - size);
    if (count == 0) {
      break;
    }
    if (count < 0 && errno != EINTR) {
      return system_error(errno, "read it", "stdin");
    }
    size += count < 0 ? 0 : static_cast<std::size_t>(count);
  }
  text.resize(size);
  return text;
}

}  // namespace

std::vector<configs::Override> numbered_overrides(const std::vector<std::string>& texts,
                                                  const Session& session) {
  std::vector<configs::Override> overrides;
  auto typed = session.arguments.begin();
  for (const std::string& text : texts) {
    // Options may stand between the overrides, so each one's number is found by its text, in order.
    typed = std::find(typed, session.arguments.end(), text);
    const auto number = typed - session.arguments.begin() + 1;
    overrides.push_back({text, "argument " + std::to_string(number)});
    typed = typed == session.arguments.end() ? typed : std::next(typed);
  }
  return overrides;
}

void print_warnings(const Resolved<configs::RunConfig>& resolved, Session& session) {
  for (const std::string& warning : resolved.warnings) {
    session.err << "warning: " << warning << '\n';
  }
}

void RunFile::declare(CLI::App& app, const std::string& what, const std::string& example) {
  app.add_option("FILE", path_, "The YAML file of " + what + "; - is stdin")
      ->required()
      ->type_name("");
  app.add_option("KEY=VALUE", overrides_, "Keys that override the file, e.g. " + example)
      ->type_name("");
}

Result<Resolved<configs::RunConfig>> RunFile::load(const Session& session) {
  TIDEMILL_ASSIGN_OR_RETURN(schema_, run_schema(session));
  const auto overrides = numbered_overrides(overrides_, session);
  if (path_ != "-") {
    return configs::load_run_config(schema_, path_, overrides);
  }
  TIDEMILL_ASSIGN_OR_RETURN(const std::string text, read_stdin(configs::kMaxYamlBytes + 1));
  return configs::read_run_config(schema_, text, "stdin", overrides);
}

}  // namespace tidemill::launcher
