// SPDX-License-Identifier: Apache-2.0
// Tests which folders a run accepts as its model.
#include "workflows/model_run.hpp"

#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/temporary_directory.hpp"

namespace tidemill::workflows {
namespace {

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
  const std::string path = TIDEMILL_TEST_DIR "/golden/engine/models/qwen2-tiny";
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

}  // namespace
}  // namespace tidemill::workflows
