// SPDX-License-Identifier: Apache-2.0
// Rows that are longer than any fixed budget: the memory plan makes room for the longest row of the
// data, and a row for which there is no room is refused, with file and line, before the first step.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/process/run_folder.hpp"

namespace tidemill::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Dimensions of a Llama that cost memory rather than time.
struct Dimensions {
  int layers = 2;
  int hidden = 32;
  int intermediate = 32;
  int heads = 2;
  int head_dim = 16;
};

std::string config_json(const Dimensions& model) {
  const auto field = [](const char* name, int value) {
    return ",\"" + std::string(name) + "\":" + std::to_string(value);
  };
  return R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_act":"silu",)"
         R"("rms_norm_eps":1e-6,"tie_word_embeddings":true,"torch_dtype":"float32","vocab_size":64,)"
         R"("rope_theta":10000.0,"bos_token_id":0,"eos_token_id":1,"max_position_embeddings":16384)" +
         field("num_hidden_layers", model.layers) + field("hidden_size", model.hidden) +
         field("intermediate_size", model.intermediate) +
         field("num_attention_heads", model.heads) + field("num_key_value_heads", model.heads) +
         field("head_dim", model.head_dim) + "}";
}

// One row of ready tokens, in which every token is a target.
std::string token_row(int tokens) {
  std::string ids;
  std::string mask;
  for (int i = 0; i < tokens; ++i) {
    ids += (i == 0 ? "" : ",") + std::to_string(2 + i * 7 % 60);
    mask += i == 0 ? "0" : ",1";
  }
  return "{\"input_ids\":[" + ids + "],\"loss_mask\":[" + mask + "]}\n";
}

class LongRowsTest : public ::testing::Test {
protected:
  ~LongRowsTest() override {
    if (HasFailure()) {
      folder_.keep();
    }
  }

  // Trains one step of supervised tuning on a short row and on one of `tokens` tokens, in line 2.
  Ended train(const Dimensions& model, int tokens, const std::vector<std::string>& overrides = {}) {
    std::filesystem::create_directory(folder_.path() / "model");
    folder_.write("model/config.json", config_json(model));
    folder_.write("rows.jsonl", token_row(16) + token_row(tokens));
    folder_.write("long.yaml",
                  "workflow: sft\n"
                  "model: {path: model, init: random}\n"
                  "data: {train: rows.jsonl}\n"
                  "train: {steps: 1, sequences_per_step: 2, adapter: {kind: lora, rank: 4}}\n"
                  "checkpoint: {every_steps: 1}\n");
    std::vector<std::string> arguments{"run", "long.yaml"};
    arguments.insert(arguments.end(), overrides.begin(), overrides.end());
    const auto ended = folder_.run(arguments);
    EXPECT_TRUE(ended.has_value()) << "hangs";
    return ended.value_or(Ended{});
  }

  RunFolder folder_;
};

TEST_F(LongRowsTest, KeysAndValuesOfTheLongestRowHaveRoom) {
  // 64 KiB of keys and values a token.
  const Ended ended = train({.layers = 8, .heads = 8, .head_dim = 128}, 1200);
  EXPECT_EQ(ended.code, 0) << ended.describe();
  EXPECT_THAT(ended.err, HasSubstr("memory: "));
}

TEST_F(LongRowsTest, ActivationsOfTheLongestRowHaveRoom) {
  // Half a MiB of activations a token.
  const Ended ended = train({.layers = 16, .intermediate = 4096}, 2445);
  EXPECT_EQ(ended.code, 0) << ended.describe();
}

TEST_F(LongRowsTest, LessMemoryIsMetByComputingAgain) {
  const Ended ended =
      train({.layers = 16, .intermediate = 4096}, 2445, {"device.memory_bytes=600MiB"});
  EXPECT_EQ(ended.code, 0) << ended.describe();
  EXPECT_THAT(ended.err, AllOf(HasSubstr("recompute "), Not(HasSubstr("recompute none"))));
}

TEST_F(LongRowsTest, RowWithoutRoomIsNamedBeforeTheFirstStep) {
  const Ended ended =
      train({.layers = 16, .intermediate = 4096}, 16000, {"device.memory_bytes=200MiB"});
  EXPECT_EQ(ended.code, 2) << ended.describe();
  EXPECT_THAT(ended.last_error_line(),
              AllOf(HasSubstr("rows.jsonl:2: "), HasSubstr("device.memory_bytes"),
                    HasSubstr("data.max_prompt_tokens")));
}

}  // namespace
}  // namespace tidemill::test
