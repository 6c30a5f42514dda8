// SPDX-License-Identifier: Apache-2.0
#include "launcher/runs/before_after.hpp"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <ostream>
#include <utility>

#include "base/json/json.hpp"
#include "launcher/terminal.hpp"
#include "workflows/rl/evaluation.hpp"

namespace tidemill::launcher {
namespace {

using workflows::ModelScores;
using workflows::RlOptions;
using workflows::ScoredResponse;

constexpr std::size_t kRowsShown = 5;
constexpr std::size_t kCellColumns = 24;

// Returns the last message of the user if `prompt` is the JSON of messages, else `prompt` itself.
std::string last_user_message(const std::string& prompt) {
  const auto messages = parse_json(prompt);
  const Json::Array* list = messages.ok() ? messages.value().if_array() : nullptr;
  if (list == nullptr) {
    return prompt;
  }
  for (auto message = list->rbegin(); message != list->rend(); ++message) {
    const Json* role = message->find("role");
    const Json* content = message->find("content");
    if (role != nullptr && role->if_string() != nullptr && *role->if_string() == "user" &&
        content != nullptr && content->if_string() != nullptr) {
      return *content->if_string();
    }
  }
  return prompt;
}

// Returns the start of a text on one line, padded to the width of a column and a gap.
std::string cell(const std::string& text, Letters letters) {
  std::string shown = shown_text(text, letters);
  if (shown_width(shown) > kCellColumns) {
    const std::string dots = letters == Letters::kUtf8 ? "\u2026" : "...";
    std::size_t end = 0;
    for (std::size_t left = kCellColumns - shown_width(dots) + 1; left > 0; ++end) {
      left -= (static_cast<unsigned char>(shown[end]) & 0xC0U) != 0x80U ? 1 : 0;
    }
    shown = shown.substr(0, end - 1) + dots;
  }
  return shown + std::string(kCellColumns + 2 - shown_width(shown), ' ');
}

std::string three_decimals(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3f", value);
  return text;
}

// Returns the indices of the responses to show: those of prompts at regular intervals.
std::vector<std::size_t> shown_indices(const ModelScores& scores) {
  const std::size_t prompts = scores.responses.size() / scores.samples;
  std::vector<std::size_t> indices;
  for (std::size_t i = 0; i < std::min(kRowsShown, prompts); ++i) {
    indices.push_back((2 * i + 1) * prompts / (2 * std::min(kRowsShown, prompts)) * scores.samples);
  }
  return indices;
}

void print_table(const std::optional<ModelScores>& before, const ModelScores& after,
                 std::ostream& out) {
  const Letters letters = detect_terminal(out).letters;
  const auto column = [letters](const std::string& text) { return cell(text, letters); };
  const auto line = [&out, &after](const char* name, const ModelScores& scores) {
    out << name << three_decimals(scores.mean_at_k);
    if (after.samples > 1) {
      out << "   pass@" << after.samples << " " << three_decimals(scores.pass_at_k);
    }
    if (scores.failed > 0) {
      out << "   (" << scores.failed << " responses not scored)";
    }
    out << '\n';
  };
  out << '\n';
  if (before.has_value()) {
    line("mean reward before  ", *before);
  }
  line("mean reward after   ", after);
  out << '\n'
      << column("prompt") << (before ? column("response before") : "") << column("response after")
      << "reference\n";
  for (const std::size_t index : shown_indices(after)) {
    const ScoredResponse& scored = after.responses[index];
    out << column(last_user_message(scored.prompt))
        << (before ? column(before->responses[index].response) : "") << column(scored.response)
        << shown_text(scored.reference_answer, letters) << '\n';
  }
  out << '\n';
}

void print_json(const std::optional<ModelScores>& before, const ModelScores& after,
                std::ostream& out) {
  Json::Object line{{"kind", "before_and_after"}, {"accuracy_after", after.mean_at_k}};
  if (before.has_value()) {
    line.push_back({"accuracy_before", before->mean_at_k});
  }
  Json::Array responses;
  for (const std::size_t index : shown_indices(after)) {
    const ScoredResponse& scored = after.responses[index];
    Json::Object shown{{"prompt", scored.prompt}, {"after", scored.response}};
    if (before.has_value()) {
      shown.push_back({"before", before->responses[index].response});
    }
    shown.push_back({"right", scored.reference_answer});
    responses.push_back(Json(std::move(shown)));
  }
  line.push_back({"answers", Json(std::move(responses))});
  out << Json(std::move(line)).to_line();
}

}  // namespace

Status print_before_and_after(const RunContext& context, const std::string& started,
                              const workflows::RunEnvironment& run, Session& session) {
  const auto* rl = context.config.workflow.get<RlOptions>();
  if (rl == nullptr || rl->eval.common.every_steps == 0 || rl->data.eval.empty()) {
    return {};
  }
  const std::filesystem::path exported = context.directory / "export";
  const workflows::RewardContext rewards{{run.system, run.clock, run.directory}, run.extensions};
  std::optional<ModelScores> before;
  if (rl->model.init == workflows::ModelInit::kFiles) {
    std::optional<std::filesystem::path> adapter;
    if (rl->train.common.adapter.has_value()) {
      const auto* given = rl->train.common.adapter->source.get<workflows::GivenAdapter>();
      adapter = given != nullptr ? std::optional<std::filesystem::path>(given->path) : std::nullopt;
    }
    TIDEMILL_ASSIGN_OR_RETURN(
        before, workflows::evaluate_model(*rl, {rl->model.path, adapter, started}, rewards));
  }
  const bool trains_adapter = rl->train.common.adapter.has_value();
  workflows::EvaluatedModel result{exported, std::nullopt, started};
  if (trains_adapter) {
    result.model = rl->model.path;
    result.adapter = exported / "adapter";
  }
  TIDEMILL_ASSIGN_OR_RETURN(const ModelScores after,
                            workflows::evaluate_model(*rl, result, rewards));
  if (session.form == OutputForm::kJson) {
    print_json(before, after, session.out);
  } else {
    print_table(before, after, session.out);
  }
  return {};
}

}  // namespace tidemill::launcher
