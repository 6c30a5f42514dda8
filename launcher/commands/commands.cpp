// SPDX-License-Identifier: Apache-2.0
#include "launcher/commands/commands.hpp"

namespace tidemill::launcher {

std::vector<std::unique_ptr<Command>> all_commands() {
  std::vector<std::unique_ptr<Command>> commands;
  commands.push_back(make_run_command());
  commands.push_back(make_resume_command());
  commands.push_back(make_runs_command());
  commands.push_back(make_show_command());
  commands.push_back(make_top_command());
  commands.push_back(make_scale_command());
  commands.push_back(make_check_command());
  commands.push_back(make_explain_command());
  commands.push_back(make_schema_command());
  commands.push_back(make_serve_command());
  commands.push_back(make_chat_command());
  commands.push_back(make_keys_command());
  commands.push_back(make_generate_command());
  commands.push_back(make_score_command());
  commands.push_back(make_tokenize_command());
  commands.push_back(make_template_command());
  commands.push_back(make_export_command());
  commands.push_back(make_completion_command());
  commands.push_back(make_worker_command());
  return commands;
}

}  // namespace tidemill::launcher
