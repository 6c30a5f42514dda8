// SPDX-License-Identifier: Apache-2.0
// What a server says about requests for fine-tuning jobs that it refuses.
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/tuning/stores.hpp"
#include "configs/load.hpp"
#include "tests/support/temporary_directory.hpp"
#include "workflows/model_run.hpp"
#include "workflows/serve/job_config.hpp"
#include "workflows/serve/job_runs.hpp"
#include "workflows/serve/run_serve.hpp"

namespace tidemill::workflows {
namespace {

using storage::GraderKind;
using storage::JobMethod;
using storage::JobSpec;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const std::string kRefused = "is not a key that a job may set";

class JobRequestsTest : public ::testing::Test {
protected:
  void SetUp() override {
    const auto stores = actors::open_tuning_stores(folder_.path() / "jobs", disk_);
    ASSERT_TRUE(stores.ok()) << stores.status().to_string();
    files_ = stores.value().files;
    std::string rows;
    for (int row = 0; row < 20; ++row) {
      rows += "{\"prompt\": \"1+1=\", \"answer\": \"2\"}\n";
    }
    const auto file = files_->put({"rows.jsonl", std::string(storage::kFineTunePurpose), 1},
                                  std::as_bytes(std::span(rows)));
    ASSERT_TRUE(file.ok()) << file.status().to_string();
    file_ = file.value().id;
    server_.model.path = TIDEMILL_SOURCE_DIR "/examples/models/arithmetic";
    server_.serve.jobs_path = "jobs";
    server_.serve.tuning.job_tokens = 32;  // half of the context
    auto model = open_trained_model(server_.model, {}, 0);
    ASSERT_TRUE(model.ok()) << model.status().to_string();
    model_ = std::make_unique<engines::ModelFiles>(std::move(model.value().files));
  }

  [[nodiscard]] JobSpec supervised(const std::string& overrides) const {
    JobSpec spec;
    spec.model = "arithmetic";
    spec.training_file = file_;
    spec.overrides = overrides;
    return spec;
  }

  [[nodiscard]] JobSpec reinforcement(const std::string& overrides,
                                      const std::string& reward = R"({"kind": "number"})") const {
    JobSpec spec = supervised(overrides);
    spec.method = JobMethod::kReinforcement;
    spec.grader.kind = GraderKind::kReward;
    spec.grader.reward = reward;
    return spec;
  }

  [[nodiscard]] Status check(const JobSpec& spec) const {
    const ParseRun parse = [](const std::string& text,
                              const std::string& source) -> Result<JobWorkflow> {
      const auto schema = Schema<configs::RunConfig>::described();
      TIDEMILL_ASSIGN_OR_RETURN(const Resolved<configs::RunConfig> run,
                                configs::read_run_config(schema, text, source));
      if (const auto* sft = run.value.workflow.get<SftOptions>()) {
        return JobWorkflow(*sft);
      }
      return JobWorkflow(*run.value.workflow.get<RlOptions>());
    };
    return check_job({server_, "arithmetic", *model_, files_, parse, {std::int64_t{8} << 30U, 1}},
                     spec);
  }

  [[nodiscard]] std::string refusal(const JobSpec& spec) const {
    const Status status = check(spec);
    return status.ok() ? "was accepted" : status.message();
  }

  test::TemporaryDirectory folder_;
  PosixFileSystem disk_;
  std::shared_ptr<storage::FileStore> files_;
  std::string file_;
  ServeOptions server_;
  std::unique_ptr<engines::ModelFiles> model_;
};

TEST_F(JobRequestsTest, GoodRequestsAreAccepted) {
  EXPECT_EQ(refusal(supervised("")), "was accepted");
  EXPECT_EQ(refusal(reinforcement("")), "was accepted");
  EXPECT_EQ(refusal(supervised(R"({"train.epsilon": 0.01, "data.max_prompt_tokens": 32,
                                   "data.chat_template_kwargs": {"enable_thinking": false}})")),
            "was accepted");
  EXPECT_EQ(refusal(reinforcement(R"({"rollout.max_new_tokens": 8, "data.max_prompt_tokens": 24,
                                      "rollout.temperature": 0.5, "eval.temperature": 0,
                                      "train.betas": [0.9, 0.99], "algorithm.name": "dapo"})")),
            "was accepted");
}

TEST_F(JobRequestsTest, TheClipRangeOfOtherProgramsIsNotTheOptimizersEpsilon) {
  const std::string meant = "; did you mean algorithm.clip_low and algorithm.clip_high?";
  for (const char* key : {"epsilon", "algorithm.epsilon", "grpo.epsilon"}) {
    EXPECT_THAT(refusal(reinforcement(std::string("{\"") + key + "\": 0.2}")), EndsWith(meant))
        << key;
  }
  EXPECT_EQ(refusal(supervised(R"({"epsilon": 0.2})")),
            "tidemill.epsilon: " + kRefused + "; did you mean train.epsilon?");
  EXPECT_THAT(refusal(supervised(R"({"train.epsilon": 0.2})")),
              AllOf(StartsWith("tidemill.train.epsilon: "), HasSubstr("at most 0.01")));
}

TEST_F(JobRequestsTest, RolloutsMustNotBeGreedy) {
  EXPECT_EQ(refusal(reinforcement(R"({"rollout.temperature": 0})")),
            "tidemill.rollout.temperature: must be above 0, or all samples of a group are equal");
}

TEST_F(JobRequestsTest, AnErrorNamesTheWholeKeyInTheWordsOfTheApi) {
  EXPECT_EQ(refusal(supervised(R"({"train.steps": 1, "rollout.temperature": 1})")),
            "tidemill.rollout.temperature: belongs to the method reinforcement, not to supervised");
  EXPECT_EQ(refusal(supervised(R"({"eval.samples": 1})")),
            "tidemill.eval.samples: belongs to the method reinforcement, not to supervised");
  EXPECT_EQ(refusal(supervised(R"({"algorithm.typo": 1})")),
            "tidemill.algorithm.typo: belongs to the method reinforcement, not to supervised");
  EXPECT_THAT(refusal(supervised(R"({"train.adapter.target_modules": ["q_prj"]})")),
              StartsWith("tidemill.train.adapter.target_modules: `q_prj` is not a layer of this "
                         "model; it has "));
  EXPECT_THAT(refusal(supervised(R"({"train.betas": [0.9, 2]})")),
              StartsWith("tidemill.train.betas[1]: "));
}

TEST_F(JobRequestsTest, APromptHasRoomInASequenceOfAJob) {
  EXPECT_EQ(refusal(supervised(R"({"data.max_prompt_tokens": 33})")),
            "tidemill.data.max_prompt_tokens: 33 exceeds the 32 tokens of a sequence of a job "
            "(serve.tuning.job_tokens)");
  EXPECT_EQ(refusal(reinforcement(R"({"data.max_prompt_tokens": 100000})")),
            "tidemill.data.max_prompt_tokens: 100000 and rollout.max_new_tokens (16) exceed the "
            "32 tokens of a sequence of a job (serve.tuning.job_tokens)");
  server_.serve.tuning.job_tokens = 4096;
  EXPECT_THAT(refusal(supervised(R"({"data.max_prompt_tokens": 65})")),
              EndsWith("65 exceeds the 64 tokens of a sequence of a job (the model's context)"));
}

TEST_F(JobRequestsTest, AnErrorOfAGraderNamesItsPlace) {
  const std::string grader = "method.reinforcement.grader.";
  EXPECT_THAT(refusal(reinforcement("", R"({"kind": "regex", "pattern": "("})")),
              StartsWith(grader + "reward.pattern: offset 1: "));
  EXPECT_THAT(
      refusal(reinforcement("", R"([{"kind": "number"}, {"kind": "regex", "pattern": "("}])")),
      StartsWith(grader + "reward[1].pattern: offset 1: "));
  EXPECT_THAT(refusal(reinforcement(
                  "", R"([{"kind": "number"}, {"kind": "regex", "weight": "x", "pattern": "a"}])")),
              StartsWith(grader + "reward[1].weight: "));
  EXPECT_THAT(refusal(reinforcement("", R"({"kind": "numbr"})")),
              AllOf(StartsWith(grader + "reward.kind: "), Not(HasSubstr("command"))));
  EXPECT_THAT(refusal(reinforcement("", R"({"kind": "accuracy"})")),
              AllOf(StartsWith(grader + "reward.kind: "), HasSubstr("exact_match, number, regex"),
                    Not(HasSubstr("command"))));
}

TEST_F(JobRequestsTest, ARefusedKeyNamesItsCounterpart) {
  struct Row {
    const char* key;
    const char* hint;
  };
  for (const Row& row : std::vector<Row>{
           {"reward.kind", "; use method.reinforcement.grader"},
           {"reward", "; use method.reinforcement.grader"},
           {"reward_weights", "; each entry of reward has its own weight"},
           {"train.gradient_accumulation_steps", "; use batch_size"},
           {"vllm_gpu_memory_utilization", "; the server sets it"},
           {"train.optim", "; the optimizer is AdamW"},
           {"neftune_noise_alpha", "; embeddings get no noise"},
       }) {
    const std::string overrides = std::string("{\"") + row.key + "\": 1}";
    const std::string message = "tidemill." + std::string(row.key) + ": " + kRefused + row.hint;
    EXPECT_EQ(refusal(reinforcement(overrides)), message);
    EXPECT_EQ(refusal(supervised(overrides)), message);
  }
  JobSpec spec = reinforcement(R"({"train.minibatches": 3})");
  spec.hyperparameters.batch_size = 4;
  EXPECT_EQ(refusal(spec), "tidemill.train.minibatches: must divide batch_size (4)");
}

TEST_F(JobRequestsTest, AJobDoesNotContinueFromAnAdapter) {
  JobSpec spec = supervised("");
  spec.model = "ft:arithmetic::12345678";
  const Status status = check(spec);
  EXPECT_EQ(status.code(), Errc::kNotFound);
  EXPECT_EQ(status.message(),
            "model: must be \"arithmetic\"; a job trains a new adapter and cannot continue from "
            "another one");
}

TEST_F(JobRequestsTest, TheAccessOfAServerIsCheckedWithoutStartingIt) {
  ServerOptions options;
  EXPECT_TRUE(check_access(options).ok());
  options.host = "0.0.0.0";
  EXPECT_THAT(check_access(options).message(), StartsWith("serve.host: must be an address of"));
  options.keys_file = (folder_.path() / "none.json").string();
  EXPECT_THAT(check_access(options).message(),
              AllOf(StartsWith("serve.keys_file: "), HasSubstr("none.json")));
}

}  // namespace
}  // namespace tidemill::workflows
