// SPDX-License-Identifier: Apache-2.0
// Tests which folders a run accepts as its model, how adapters are made, and what a run tells its
// user.
#include "workflows/model_run.hpp"

#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/digest.hpp"
#include "storage/dataset/dataset.hpp"
#include "tests/support/temporary_directory.hpp"
#include "workflows/actor_system.hpp"
#include "workflows/process_limits.hpp"

namespace tidemill::workflows {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const std::string kModels = TIDEMILL_TEST_DIR "/golden/engine/models/";

class RunAsModel : public ::testing::Test {
protected:
  RunAsModel() { add("run.yaml"); }

  void add(const std::string& name) const {
    std::filesystem::create_directories((directory_.path() / name).parent_path());
    std::ofstream(directory_.path() / name) << "{}";
  }
  // Returns the message of the refusal, from its second half on.
  [[nodiscard]] std::string refusal() const {
    const Status refused = open_trained_model({path_, {}, {}}, {}, 0).status();
    EXPECT_EQ(refused.code(), Errc::kInvalidArgument);
    const std::string start = "model.path: `" + path_ + "` is a run, not a model; ";
    EXPECT_EQ(refused.message().substr(0, start.size()), start);
    return refused.message().substr(std::min(start.size(), refused.message().size()));
  }

  test::TemporaryDirectory directory_;
  const std::string path_ = directory_.path().string();
};

TEST_F(RunAsModel, ARunThatHasExportedNothingIsRefusedWithTheCommandThatDoes) {
  EXPECT_EQ(refusal(), "write its model: tidemill export " + path_ + " " + path_ + "/export");
}

TEST_F(RunAsModel, TheExportedModelIsNamed) {
  add("export/config.json");
  EXPECT_EQ(refusal(), "its model is " + path_ + "/export");
}

TEST_F(RunAsModel, AnAdapterIsNamedWithTheCommandThatMergesIt) {
  add("export/adapter/adapter_config.json");
  EXPECT_EQ(refusal(), "its adapter is " + path_ + "/export/adapter; write the model with it: " +
                           "tidemill export " + path_ + " DIR --merge");
}

TEST_F(RunAsModel, AModelMayHaveAFileOfThatName) {
  add("config.json");
  EXPECT_EQ(open_trained_model({path_, {}, {}}, {}, 0).status().message().find("is a run"),
            std::string::npos);
}

TEST_F(RunAsModel, AnAdapterIsNamedWithTheKeysThatContinueIt) {
  const std::string adapter = path_ + "/adapter";
  add("adapter/adapter_config.json");
  EXPECT_EQ(open_trained_model({adapter, {}, {}}, {}, 0).status().message(),
            "model.path: `" + adapter +
                "` is an adapter, not a model; give the model that it was trained over, and "
                "train.adapter: {kind: given, path: " +
                adapter + "}");
}

// The model has biases at q_proj, k_proj and v_proj.
TEST(NewAdapter, TrainsTheBiasesThatItsKeyNames) {
  const std::string path = kModels + "qwen2-tiny";
  const auto biases = [&](TrainedBias bias) {
    TrainOptions train;
    NewLora lora;
    lora.target_modules = {"q_proj"};
    lora.bias = bias;
    train.adapter = AdapterOptions{OneOf{"lora", lora}};
    const auto model = open_trained_model({path, {}, {}}, train, 0);
    EXPECT_TRUE(model.ok()) << model.status().to_string();
    std::size_t count = 0;
    for (const auto& [name, tensor] : model.value().adapter->tensors) {
      count += name.ends_with(".bias") ? 1 : 0;
    }
    return count;
  };
  constexpr std::size_t kLayers = 2;
  EXPECT_EQ(biases(TrainedBias::kNone), 0U);
  EXPECT_EQ(biases(TrainedBias::kLoraOnly), kLayers);
  EXPECT_EQ(biases(TrainedBias::kAll), 3 * kLayers);
}

TEST(ModelOfARun, APathThatDoesNotExistIsRefused) {
  EXPECT_EQ(open_trained_model({"no/such", {}, {}}, {}, 0).status().message(),
            "model.path: no folder or GGUF file `no/such` (models are read from disk, not fetched "
            "by name)");
}

TEST(ModelOfARun, RandomWeightsDependOnTheSeed) {
  const auto digest = [](ModelInit init, std::uint64_t seed) {
    const auto model = open_trained_model({kModels + "llama-tiny", init, {}}, {}, seed);
    EXPECT_TRUE(model.ok()) << model.status().to_string();
    return digest_tensors(model.value().files.tensors);
  };
  EXPECT_EQ(digest(ModelInit::kFiles, 1), digest(ModelInit::kFiles, 2));
  EXPECT_EQ(digest(ModelInit::kRandom, 1), digest(ModelInit::kRandom, 1));
  EXPECT_NE(digest(ModelInit::kRandom, 1), digest(ModelInit::kRandom, 2));
  EXPECT_NE(digest(ModelInit::kRandom, 1), digest(ModelInit::kFiles, 1));
}

engines::AdapterConfig config_of(const OneOf& adapter) {
  TrainOptions train;
  train.adapter = AdapterOptions{adapter};
  const auto model = open_trained_model({kModels + "qwen2-tiny", {}, {}}, train, 0);
  EXPECT_TRUE(model.ok()) << model.status().to_string();
  return model.ok() ? model.value().adapter->config : engines::AdapterConfig();
}

TEST(NewAdapter, OfLoraHasTheSettingsOfItsKeys) {
  NewLora lora;
  lora.rank = 3;
  const engines::AdapterConfig plain = config_of({"lora", lora});
  EXPECT_EQ(plain.kind, engines::AdapterKind::kLora);
  EXPECT_EQ(plain.base_model, kModels + "qwen2-tiny");
  EXPECT_EQ(plain.rank, 3);
  EXPECT_EQ(plain.alpha, 6.0) << "twice the rank";
  EXPECT_FALSE(plain.use_rslora);
  EXPECT_FALSE(plain.use_dora);
  EXPECT_EQ(plain.targets.kind, engines::ModuleSelector::Kind::kAllLinear);
  EXPECT_THAT(plain.modules_to_save, IsEmpty());

  lora.alpha = 5.0;
  lora.rslora = true;
  lora.target_modules = {"q_proj", "o_proj"};
  lora.modules_to_save = {"lm_head"};
  const engines::AdapterConfig other = config_of({"lora", lora});
  EXPECT_EQ(other.alpha, 5.0);
  EXPECT_TRUE(other.use_rslora);
  EXPECT_FALSE(other.use_dora);
  EXPECT_EQ(other.targets.kind, engines::ModuleSelector::Kind::kNames);
  EXPECT_THAT(other.targets.names, ElementsAre("q_proj", "o_proj"));
  EXPECT_THAT(other.modules_to_save, ElementsAre("lm_head"));
  lora.dora = true;
  EXPECT_TRUE(config_of({"lora", lora}).use_dora);
}

TEST(NewAdapter, OfIa3HasTheSettingsOfItsKeys) {
  NewIa3 ia3;
  ia3.target_modules = {"v_proj", "up_proj"};
  ia3.feedforward_modules = {"up_proj"};
  ia3.modules_to_save = {"lm_head"};
  const engines::AdapterConfig config = config_of({"ia3", ia3});
  EXPECT_EQ(config.kind, engines::AdapterKind::kIa3);
  EXPECT_THAT(config.targets.names, ElementsAre("v_proj", "up_proj"));
  EXPECT_THAT(config.feedforward.names, ElementsAre("up_proj"));
  EXPECT_THAT(config.modules_to_save, ElementsAre("lm_head"));
}

TEST(InputsOfARun, AreThoseThatAResumedRunIsComparedWith) {
  ModelOptions options{kModels + "../models/qwen2-tiny", ModelInit::kRandom, {}};
  DataOptions data;
  data.train = {{"a.jsonl", {}}, {"b/*.jsonl", {}}};
  const actors::RunInputs inputs = inputs_of({}, options, data, {"of data", "of the tokenizer"});
  EXPECT_EQ(inputs.model, kModels + "qwen2-tiny");
  EXPECT_TRUE(inputs.random_weights);
  EXPECT_EQ(inputs.data_digest, "of data");
  EXPECT_EQ(inputs.tokenizer_digest, "of the tokenizer");
  EXPECT_EQ(inputs.data_files, "a.jsonl, b/*.jsonl");
  EXPECT_EQ(inputs.adapter_config, "");

  options.init = ModelInit::kFiles;
  TrainedModel model;
  model.adapter = engines::AdapterFiles();
  model.adapter->config.rank = 5;
  const actors::RunInputs other = inputs_of(model, options, data, {});
  EXPECT_FALSE(other.random_weights);
  EXPECT_EQ(other.adapter_config, engines::adapter_config_text(model.adapter->config));
}

TEST(OpenDataSet, SaysWhichRowsAreLeftOut) {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() / "rows.jsonl";
  std::ofstream(path) << R"({"prompt": "1+2=", "answer": "3"})"
                      << "\n{]\n"
                      << R"({"prompt": "2+2=", "answer": "4"})"
                      << "\n[]\n";
  storage::DatasetOptions options;
  options.paths = {path};
  options.on_error = storage::OnRowError::kSkip;
  std::vector<std::string> lines;
  const auto log = [&](const std::string& line) { lines.push_back(line); };
  const auto opened = open_data_set<storage::PromptDataset>(options, "data.train", log);
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  EXPECT_EQ(opened.value()->num_rows(), 2U);
  ASSERT_EQ(opened.value()->first_skipped().size(), 2U);
  EXPECT_THAT(lines,
              ElementsAre("data.train: rows skipped: 2; " + opened.value()->first_skipped()[0] +
                          "; " + opened.value()->first_skipped()[1]));
  EXPECT_THAT(lines[0], ::testing::HasSubstr("; " + path + ":2: "));
  EXPECT_THAT(lines[0], ::testing::HasSubstr("; " + path + ":4: "));

  lines.clear();
  std::ofstream(path) << R"({"prompt": "1+2=", "answer": "3"})" << '\n';
  EXPECT_TRUE(open_data_set<storage::PromptDataset>(options, "data.train", log).ok());
  EXPECT_THAT(lines, IsEmpty());
}

TEST(OpenDataSet, AMissingFileIsNamedWithTheKey) {
  storage::DatasetOptions options;
  options.paths = {"no/such*.jsonl"};
  const auto refused =
      open_data_set<storage::PromptDataset>(options, "data.eval", [](const std::string&) {});
  EXPECT_EQ(refused.status().code(), Errc::kNotFound);
  EXPECT_EQ(refused.status().message(), "data.eval: `no/such*.jsonl` matches no file");
}

// A store whose last commit is of step 3.
class Committed final : public actors::CommitStore {
public:
  [[nodiscard]] std::optional<std::uint64_t> last_step() const override { return 3; }
  [[nodiscard]] Status save(const actors::RunCommit& /*commit*/) override { return {}; }
  [[nodiscard]] Result<std::optional<actors::RunCommit>> load() override {
    return std::optional<actors::RunCommit>();
  }
};

TEST(CheckTotalSteps, NamesTheKeyThatSetsTheLength) {
  TrainOptions train;
  EXPECT_TRUE(check_total_steps(train, 3, Committed()).ok());
  const std::string problem = ": the run would end after step 2, but its last commit is of step 3";
  EXPECT_EQ(check_total_steps(train, 2, Committed()).message(), "data.epochs" + problem);
  train.steps = 2;
  EXPECT_EQ(check_total_steps(train, 2, Committed()).message(), "train.steps" + problem);
}

class MessagesOfARun : public ::testing::Test {
protected:
  ActorSystem actor_system_;
  SystemClock clock_;
  PosixFileSystem files_;
  std::vector<std::string> warnings_;
  std::vector<std::string> notes_;
  const RunEnvironment run_{actor_system_.system(),
                            clock_,
                            files_,
                            {},
                            nullptr,
                            0,
                            "",
                            {},
                            {},
                            [this](const std::string& line) { warnings_.push_back(line); },
                            [this](const std::string& line) { notes_.push_back(line); },
                            {},
                            {}};
};

TEST_F(MessagesOfARun, SayWhatItDoesFirst) {
  log_loading({"a/model", {}, {}}, run_);
  log_first_step(2, 3, "generating", run_);
  log_first_step(3, 3, "generating", run_);
  log_first_step(4, 3, "generating", run_);
  EXPECT_THAT(notes_, ElementsAre("loading a/model", "step 2: generating", "step 3: generating",
                                  "step 3 was the last one; train.steps=N gives the run more"));
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(MessagesOfARun, SayHowMuchMemoryIsExpected) {
  constexpr std::int64_t kMiB = 1 << 20;
  RunPlans plans;
  plans.expected.stream_bytes = 3 * kMiB;
  plans.maximum.best_bytes = 4 * kMiB;
  log_memory_plans(plans, run_);
  plans.maximum.budgets.recompute = engines::Recompute::kLayer;
  plans.maximum.budgets.window_tokens = 7;
  plans.expected.note = "NOTE";
  log_memory_plans(plans, run_);
  EXPECT_THAT(notes_, ElementsAre("memory: 3.0 MiB expected, 4.0 MiB at most",
                                  "memory: 3.0 MiB expected, 4.0 MiB at most; recompute layer, "
                                  "windows of 7 tokens; NOTE"));
}

TEST_F(MessagesOfARun, WarnOfADeviceThatIsTooLarge) {
  warn_of_device({1, 1}, run_);
  EXPECT_THAT(warnings_, IsEmpty());
  DeviceOptions device;
  device.threads = 100'000;
  device.memory_bytes = std::numeric_limits<std::int64_t>::max();
  warn_of_device(device, run_);
  EXPECT_THAT(warnings_,
              ElementsAre("device.threads: " + engines::threads_warning(100'000),
                          "device.memory_bytes: " +
                              memory_warning(device, process_memory_limit(later_threads(device)))));
}

}  // namespace
}  // namespace tidemill::workflows
