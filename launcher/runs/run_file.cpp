// SPDX-License-Identifier: Apache-2.0
#include "launcher/runs/run_file.hpp"

#include <CLI/App.hpp>
#include <algorithm>

#include "configs/load.hpp"
#include "launcher/additions.hpp"

namespace tidemill::launcher {

void RunFile::declare(CLI::App& app) {
  app.add_option("FILE", path_, "The YAML file of a run")->required()->type_name("");
  app.add_option("KEY=VALUE", overrides_, "Keys that override the file, e.g. train.steps=20")
      ->type_name("");
}

Result<Resolved<configs::RunConfig>> RunFile::load(const Session& session) {
  TIDEMILL_ASSIGN_OR_RETURN(schema_, run_schema(session));
  std::vector<configs::Override> overrides;
  auto typed = session.arguments.begin();
  for (const std::string& text : overrides_) {
    // Options may stand between the overrides, so each one's number is found by its text, in order.
    typed = std::find(typed, session.arguments.end(), text);
    const auto number = typed - session.arguments.begin() + 1;
    overrides.push_back({text, "argument " + std::to_string(number)});
    typed = typed == session.arguments.end() ? typed : std::next(typed);
  }
  return configs::load_run_config(schema_, path_, overrides);
}

}  // namespace tidemill::launcher
