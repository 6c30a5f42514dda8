// SPDX-License-Identifier: Apache-2.0
// The list of all commands.
#pragma once

#include <memory>
#include <vector>

#include "launcher/command.hpp"

namespace tidemill::launcher {

/// Each function makes the command that it is named after.
[[nodiscard]] std::unique_ptr<Command> make_run_command();
[[nodiscard]] std::unique_ptr<Command> make_keys_command();
[[nodiscard]] std::unique_ptr<Command> make_resume_command();
[[nodiscard]] std::unique_ptr<Command> make_chat_command();
[[nodiscard]] std::unique_ptr<Command> make_check_command();
[[nodiscard]] std::unique_ptr<Command> make_completion_command();
[[nodiscard]] std::unique_ptr<Command> make_explain_command();
[[nodiscard]] std::unique_ptr<Command> make_export_command();
[[nodiscard]] std::unique_ptr<Command> make_generate_command();
[[nodiscard]] std::unique_ptr<Command> make_runs_command();
[[nodiscard]] std::unique_ptr<Command> make_schema_command();
[[nodiscard]] std::unique_ptr<Command> make_serve_command();
[[nodiscard]] std::unique_ptr<Command> make_score_command();
[[nodiscard]] std::unique_ptr<Command> make_show_command();
[[nodiscard]] std::unique_ptr<Command> make_template_command();
[[nodiscard]] std::unique_ptr<Command> make_tokenize_command();
[[nodiscard]] std::unique_ptr<Command> make_top_command();
[[nodiscard]] std::unique_ptr<Command> make_scale_command();
[[nodiscard]] std::unique_ptr<Command> make_worker_command();

/// Makes one command of each kind, in the order in which `--help` lists them.
[[nodiscard]] std::vector<std::unique_ptr<Command>> all_commands();

}  // namespace tidemill::launcher
