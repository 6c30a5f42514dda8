// SPDX-License-Identifier: Apache-2.0
// Writes lists of fine-tuning jobs, events and checkpoints, one a line, for openai_files_test.py.
#include <iostream>

#include "actors/gateway/openai/fine_tuning.hpp"

namespace tidemill {
namespace {

storage::JobRecord new_job() {
  storage::JobRecord job;
  job.id = "ftjob-new";
  job.created_at = 1;
  job.spec.model = "base";
  job.spec.training_file = "file-1";
  job.spec.seed = 3;
  return job;
}

storage::JobRecord ended_job() {
  storage::JobRecord job = new_job();
  job.id = "ftjob-ended";
  job.finished_at = 9;
  job.state = storage::JobState::kSucceeded;
  job.spec.validation_file = "file-2";
  job.spec.suffix = "mine";
  job.spec.metadata = {{"a", "b"}};
  job.spec.overrides = R"({"train.steps": 3})";
  job.is_resolved = true;
  job.resolved = {8, 2, 1.5, 0, 0};
  job.fine_tuned_model = "ft:base:mine";
  job.trained_tokens = 10;
  job.result_files = {"file-3"};
  return job;
}

storage::JobRecord failed_job() {
  storage::JobRecord job = new_job();
  job.id = "ftjob-failed";
  job.state = storage::JobState::kFailed;
  job.spec.method = storage::JobMethod::kReinforcement;
  job.spec.grader = {
      storage::GraderKind::kStringCheck, "equal",           storage::StringOperation::kEq,
      "{{sample.output_text}}",          "{{item.answer}}", ""};
  job.error = {"invalid_file", "line 3: no prompt", "training_file"};
  return job;
}

int run() {
  using actors::openai::to_json;
  std::cout << to_json(storage::JobPage{{new_job(), ended_job(), failed_job()}, true}).to_line();
  std::cout << to_json(storage::JobEventPage{
                           {{"ftevent-2", 2, storage::EventLevel::kInfo,
                             storage::EventType::kMetrics, "Step 1", R"({"step": 1})"},
                            {"ftevent-1", 1, storage::EventLevel::kError,
                             storage::EventType::kMessage, "it failed", ""}},
                           false})
                   .to_line();
  std::cout << to_json(storage::JobCheckpointPage{
                           "ftjob-1",
                           {{"ftckpt-2", 2, 20, R"({"step": 20, "train_loss": 0.5})", "m:20"},
                            {"ftckpt-1", 1, 10, "", "m:10"}},
                           true})
                   .to_line();
  return std::cout.good() ? 0 : 1;
}

}  // namespace
}  // namespace tidemill

int main() {
  return tidemill::run();
}
