// SPDX-License-Identifier: Apache-2.0
// Fuzzes run files. The input is a YAML file and, after NUL bytes, overrides of the command line.
#include <vector>

#include "configs/load.hpp"
#include "tests/fuzz/target.hpp"

namespace tidemill::fuzz {

void run_file(std::string_view input) {
  constexpr std::size_t kMaxParts = 4;
  static const auto schema = Schema<configs::RunConfig>::described();
  const auto parts = parts_of(input, kMaxParts);
  std::vector<configs::Override> overrides;
  for (std::size_t i = 1; i < parts.size(); ++i) {
    if (!parts[i].empty()) {
      overrides.push_back({std::string(parts[i]), "argument " + std::to_string(i)});
    }
  }
  const auto run = configs::read_run_config(schema, parts[0], "FILE", overrides);
  if (!run.ok()) {
    const bool of_argument = run.status().message().starts_with("argument ");
    require_refusal(run.status(), of_argument && !overrides.empty() ? "argument " : "FILE:");
    return;
  }
  const std::string text = configs::resolved_text(schema, run.value().value);
  const auto again = configs::read_run_config(schema, text, "AGAIN");
  require_ok(again.status(), "a printed run can be read");
  require(configs::resolved_text(schema, again.value().value) == text,
          "a run survives printing and reading");
}

}  // namespace tidemill::fuzz
