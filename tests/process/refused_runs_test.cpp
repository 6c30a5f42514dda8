// SPDX-License-Identifier: Apache-2.0
// Tests runs that cannot start: they print one line that names the key or the row, exit with status
// 2, and leave no run directory.
#include <algorithm>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/process/run_folder.hpp"

namespace tidemill::test {
namespace {

using ::testing::HasSubstr;

constexpr const char* kModel =
    "model: {path: " TIDEMILL_SOURCE_DIR "/examples/models/arithmetic}\n";

class RefusedRunsTest : public ::testing::Test {
protected:
  RefusedRunsTest() { folder_.write_rows(); }

  // Expects that the run with this YAML is refused with one line that matches `line`.
  void expect_refused(const std::string& yaml, const ::testing::Matcher<std::string>& line) const {
    folder_.write("run.yaml", kModel + yaml);
    const auto ended = folder_.run({"run", "run.yaml"});
    ASSERT_TRUE(ended.has_value()) << "hangs";
    EXPECT_EQ(ended->code, 2) << ended->describe();
    EXPECT_THAT(ended->err, line);
    EXPECT_EQ(std::count(ended->err.begin(), ended->err.end(), '\n'), 1) << ended->err;
    EXPECT_FALSE(std::filesystem::exists(folder_.path() / "runs/run"));
  }
  void expect_rl_refused(const std::string& yaml,
                         const ::testing::Matcher<std::string>& line) const {
    expect_refused("workflow: rl\ntrain: {steps: 2, prompts_per_step: 4}\n" + yaml, line);
  }

  RunFolder folder_;
};

constexpr const char* kData = "data: {train: rows.jsonl}\n";
constexpr const char* kRollout = "rollout: {group_size: 4, max_new_tokens: 4}\n";
constexpr const char* kReward = "reward: {kind: number}\n";

TEST_F(RefusedRunsTest, KeysThatDoNotFitTheModel) {
  expect_rl_refused(std::string(kData) + kReward + "rollout: {group_size: 4, max_new_tokens: 64}\n",
                    "rollout.max_new_tokens: 64 leaves no room for a prompt in the model's context "
                    "of 64\n");
  expect_rl_refused(std::string(kData) + kReward + kRollout + "stream: {bytes: 100}\n",
                    HasSubstr("stream.bytes: 100 cannot hold a batch; 4 prompts with 4 samples "
                              "each may take "));
  expect_rl_refused(std::string(kData) + kReward + kRollout + "device: {memory_bytes: 1MiB}\n",
                    HasSubstr("device.memory_bytes: 1.0 MiB are allowed"));
  expect_rl_refused(
      std::string(kData) + kReward +
          "rollout: {group_size: 4, max_new_tokens: 4, kv_bytes: 1000}\n",
      HasSubstr("rollout.kv_bytes: 1000 cannot hold the longest sequence, which takes "));
  expect_rl_refused(std::string(kData) + kReward +
                        "rollout: {group_size: 4, max_new_tokens: 4, kv_bytes: "
                        "9223372036854775807}\n",
                    HasSubstr("rollout.kv_bytes: 9223372036854775807 exceeds the "));
}

// Without this check, the trainer would wait for a batch, whose last prompts would wait for space
// in the stream.
TEST_F(RefusedRunsTest, AStreamTooSmallForABatch) {
  expect_rl_refused(std::string(kData) + kReward + kRollout + "stream: {bytes: 10000}\n",
                    HasSubstr("stream.bytes: 10000 cannot hold a batch"));
  folder_.write("documents.jsonl", read_file(folder_.path() / "rows.jsonl") + "{\"prompt\": \"" +
                                       std::string(200'000, '1') + "\", \"answer\": \"2\"}\n");
  expect_rl_refused(std::string("data: {train: documents.jsonl, max_prompt_tokens: 8, "
                                "on_long_prompt: truncate_left}\n") +
                        kReward + kRollout + "stream: {bytes: 500000}\n",
                    ::testing::AllOf(HasSubstr("stream.bytes: 500000 cannot hold a batch"),
                                     HasSubstr("(the largest prompt: documents.jsonl:41)")));
}

TEST_F(RefusedRunsTest, RewardsThatCannotBeMade) {
  expect_rl_refused(std::string(kData) + kRollout + "reward: {kind: regex, pattern: '(1'}\n",
                    HasSubstr("reward.pattern: offset 2: "));
  expect_rl_refused(std::string(kData) + kRollout + "reward: {kind: command, command: [/none/x]}\n",
                    HasSubstr("reward.command: cannot run `/none/x`"));
}

TEST_F(RefusedRunsTest, DataThatDoesNotExist) {
  expect_rl_refused(std::string("data: {train: none*.jsonl}\n") + kRollout + kReward,
                    "data.train: `none*.jsonl` matches no file\n");
  expect_rl_refused(std::string("data: {train: rows.jsonl, eval: none.jsonl}\n") + kRollout +
                        kReward + "eval: {every_steps: 1}\n",
                    "data.eval: `none.jsonl` matches no file\n");
}

TEST_F(RefusedRunsTest, BadRowsAfterTheFirstBatch) {
  std::string rows = read_file(folder_.path() / "rows.jsonl");
  folder_.write("no-answer.jsonl", rows + "{\"prompt\": \"1+1=\", \"answer\": \"two\"}\n");
  expect_rl_refused(std::string("data: {train: no-answer.jsonl}\n") + kRollout + kReward,
                    "no-answer.jsonl:41: the row's reference answer has no number\n");
  folder_.write("long.jsonl",
                rows + "{\"prompt\": \"" + std::string(61, '1') + "\", \"answer\": \"2\"}\n");
  expect_rl_refused(std::string("data: {train: long.jsonl}\n") + kRollout + kReward,
                    HasSubstr("long.jsonl:41: the prompt has"));
  folder_.write("long-eval.jsonl",
                "{\"prompt\": \"" + std::string(61, '1') + "\", \"answer\": \"2\"}\n");
  expect_rl_refused(std::string("data: {train: rows.jsonl, eval: long-eval.jsonl}\n") + kRollout +
                        kReward + "eval: {every_steps: 1}\n",
                    HasSubstr("long-eval.jsonl:1: the prompt has"));
  folder_.write("tokens.jsonl", rows + "{\"input_ids\": [1, 30000], \"loss_mask\": [0, 1]}\n");
  expect_refused(
      "workflow: sft\ndata: {train: tokens.jsonl}\n"
      "train: {steps: 2, sequences_per_step: 2}\n",
      HasSubstr("tokens.jsonl:41: token 30000 is outside the vocabulary"));
}

TEST_F(RefusedRunsTest, FilesWithoutValidRows) {
  struct Case {
    const char* text;
    const char* line;
  };
  const std::vector<Case> cases{
      {"", "bad.jsonl: no usable row"},
      {"[\n  {\"prompt\": \"1+1=\"},\n  [3]\n]", "bad.jsonl:3: not a JSON object"},
      {"[\n  {\"prompt\": \"1+1=\"},\n]",
       "bad.jsonl:3: a comma of the JSON array has no row on "
       "one side"},
      {"{\n  \"prompt\": \"1+1=\",\n  \"answer\": \"2\"\n}",
       "bad.jsonl:1: not JSON at byte 2; expected JSON Lines, one object per line"},
      {"prompt,answer\n1+1=,2\n",
       "bad.jsonl:1: not JSON at byte 1; expected JSON Lines, one object per line"},
      {R"({"instruction": "Add.", "output": "2"})",
       "bad.jsonl:1: has instruction, output; needs exactly one of: prompt | messages"},
      {"{\"prompt\": \"1+1=\", \"answer\": \"2\"}\n{\"prompt\": \"2+2=\", \"ans",
       "bad.jsonl:2: not JSON at byte 24"},
      {"{\"prompt\": \"1+1=\", \"answer\": \"2\"}\n{\"prompt\": 22, \"answer\": \"4\"}",
       "bad.jsonl:2: prompt: must be a string"},
      {R"({"messages": [{"role": "human", "content": "1+1="}], "answer": "2"})",
       "bad.jsonl:1: chat template: line 7: this model knows only the roles user and assistant"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.text);
    folder_.write("bad.jsonl", c.text);
    expect_rl_refused(std::string("data: {train: bad.jsonl}\n") + kRollout + kReward,
                      std::string(c.line) + "\n");
  }
  std::filesystem::create_directories(folder_.path() / "rows");
  expect_rl_refused(std::string("data: {train: rows}\n") + kRollout + kReward,
                    "data.train: `rows` is a folder; name its files, such as \"rows/*.jsonl\"\n");
}

TEST_F(RefusedRunsTest, RowsToTrainOnThatAreOfNoKind) {
  struct Case {
    const char* row;
    const char* problem;
  };
  const std::vector<Case> cases{
      {R"({"prompt": "1+1=", "completion": "2", "text": "1+1=2"})",
       "has prompt, completion, text; needs exactly one of: text | prompt, answer | prompt, "
       "completion | messages | input_ids (labels or loss_mask are optional)"},
      {R"({"input_ids": [1, 2], "labels": [1, 3]})", "labels[1]: must be -100 or input_ids[1], 2"},
      {R"({"input_ids": [1, 2], "labels": [1]})", "labels: has 1 entries, but input_ids has 2"},
      {R"({"input_ids": [1, 257]})", "token 257 is outside the vocabulary of 257"},
      {R"({"prompt": "1+1=", "completion": [{"role": "assistant", "content": "2"}]})",
       "prompt and completion: must be two strings or two arrays of messages"},
      {R"({"prompt": [{"role": "judge", "content": "1"}],)"
       R"( "completion": [{"role": "assistant", "content": "2"}]})",
       "chat template: line 7: this model knows only the roles user and assistant"},
  };
  const std::string run = "workflow: sft\ntrain: {steps: 2, sequences_per_step: 2}\n";
  for (const Case& c : cases) {
    SCOPED_TRACE(c.row);
    folder_.write("bad.jsonl", "{\"text\": \"1+1=2\"}\n" + std::string(c.row) + "\n");
    expect_refused(run + "data: {train: bad.jsonl}\n",
                   "bad.jsonl:2: " + std::string(c.problem) + "\n");
  }
  folder_.write("bad.json", "[{\"text\": \"1+1=2\"},\n\n{\"text\": 3}]");
  expect_refused(run + "data: {train: bad.json}\n", "bad.json:3: text: must be a string\n");
}

TEST_F(RefusedRunsTest, SequencesLongerThanTheContext) {
  const std::string run = "workflow: sft\ntrain: {steps: 2, sequences_per_step: 2}\n";
  expect_refused(run + "data: {train: rows.jsonl, max_prompt_tokens: 65}\n",
                 "data.max_prompt_tokens: 65 exceeds the model's context of 64\n");
  folder_.write("long.jsonl", "{\"text\": \"" + std::string(64, '1') + "\"}\n");
  expect_refused(run + "data: {train: long.jsonl, max_prompt_tokens: 64}\n",
                 HasSubstr("long.jsonl:1: the sequence has 65 tokens; at most 64 "));
}

// Copies a model and an adapter and then damages them.
class RefusedModelsTest : public RefusedRunsTest {
protected:
  void expect_model_refused(const std::string& line, const std::string& train = "") {
    folder_.write("run.yaml", "workflow: sft\nmodel: {path: model}\ndata: {train: rows.jsonl}\n" +
                                  std::string("train: {steps: 1, sequences_per_step: 2") + train +
                                  "}\n");
    const auto ended = folder_.run({"run", "run.yaml"});
    ASSERT_TRUE(ended.has_value()) << "hangs";
    EXPECT_EQ(ended->code, 2) << ended->describe();
    EXPECT_EQ(ended->err, line + "\n");
    EXPECT_FALSE(std::filesystem::exists(folder_.path() / "runs/run"));
  }

  void copy(const std::string& golden, const std::string& name) const {
    std::filesystem::remove_all(folder_.path() / name);
    std::filesystem::copy(TIDEMILL_TEST_DIR "/golden/engine/" + golden, folder_.path() / name);
  }
  // Replaces the first occurrence of `from` in a file.
  void replace_in_file(const std::string& name, const std::string& from,
                       const std::string& to) const {
    std::string text = read_file(folder_.path() / name);
    const std::size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << name << " has no " << from;
    folder_.write(name, text.replace(at, from.size(), to));
  }
};

TEST_F(RefusedModelsTest, DirectoriesThatAreNotValidModels) {
  expect_model_refused(
      "model.path: no folder or GGUF file `model` (models are read from disk, not fetched by "
      "name)");
  std::filesystem::create_directories(folder_.path() / "model");
  expect_model_refused("model/config.json: cannot open: No such file or directory");
  copy("models/llama-tiny", "model");
  replace_in_file("model/config.json", R"("model_type": "llama")", R"("model_type": "gpt2")");
  expect_model_refused(
      R"(model/config.json: model_type: "gpt2" is not supported; only "llama", "qwen2" and "qwen3")");
  copy("models/llama-tiny", "model");
  replace_in_file("model/config.json", R"("num_hidden_layers": 3)", R"("num_hidden_layers": 4)");
  expect_model_refused(
      R"(model/model.safetensors: tensor "model.layers.3.input_layernorm.weight": missing, and 8 more)");
  copy("models/llama-tiny", "model");
  folder_.write("model/model.safetensors",
                "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n");
  expect_model_refused(
      "model/model.safetensors: is a Git LFS pointer, not the file itself; run git lfs pull");
  std::filesystem::remove(folder_.path() / "model/model.safetensors");
  folder_.write("model/pytorch_model.bin", "x");
  expect_model_refused(
      "model: contains neither model.safetensors nor model.safetensors.index.json nor a GGUF file; "
      "other formats are not supported");
  copy("models/llama-tiny", "model");
  std::filesystem::remove(folder_.path() / "model/tokenizer.json");
  expect_model_refused("model/tokenizer.json: no such file");
}

TEST_F(RefusedModelsTest, DirectoriesThatAreNotValidAdapters) {
  copy("models/llama-tiny", "model");
  const std::string given = ", adapter: {path: adapter}";
  const std::string config = "adapter/adapter_config.json";
  expect_model_refused("adapter/adapter_config.json: cannot open: No such file or directory",
                       given);
  copy("adapters/lora-qv", "adapter");
  replace_in_file(config, R"("r": 4)", R"("r": 8)");
  expect_model_refused(
      R"(adapter/adapter_model.safetensors: tensor "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": shape [4, 64], but the config asks for [8, 64])",
      given);
  copy("adapters/lora-qv", "adapter");
  replace_in_file(config, R"("use_dora": false)", R"("use_dora": true)");
  expect_model_refused(
      R"(adapter/adapter_model.safetensors: tensor "base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector": missing, and 5 more)",
      given);
  copy("adapters/lora-qv", "adapter");
  replace_in_file(config, R"("peft_type": "LORA")", R"("peft_type": "PREFIX_TUNING")");
  expect_model_refused(
      R"(adapter/adapter_config.json: peft_type: "PREFIX_TUNING" is not supported; only "LORA" and "IA3")",
      given);
}

TEST_F(RefusedModelsTest, NewAdaptersForLayersThatTheModelLacks) {
  copy("models/llama-tiny", "model");
  expect_model_refused(
      "train.adapter: target_modules: `vproj` is not a layer of this model; it has embed_tokens, "
      "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, lm_head",
      ", adapter: {target_modules: [q_proj, vproj]}");
  expect_model_refused(
      "train.adapter: modules_to_save: \"classifier\" is not a layer, norm or embedding table of "
      "this model",
      ", adapter: {modules_to_save: [classifier]}");
}

TEST_F(RefusedRunsTest, RowsWithoutTargets) {
  const std::string train = "train: {steps: 2, sequences_per_step: 2}\n";
  folder_.write("masked.jsonl", "{\"input_ids\": [1, 2], \"loss_mask\": [1, 0]}\n");
  expect_refused("workflow: sft\ndata: {train: masked.jsonl}\n" + train,
                 "data.train: none of its 1 rows has a target (masked, or too long)\n");
  expect_refused(
      "workflow: sft\ndata: {train: rows.jsonl, eval: masked.jsonl}\n"
      "eval: {every_steps: 1}\n" +
          train,
      "data.eval: none of its 1 rows has a target (masked, or too long)\n");
  folder_.write("no-answer.jsonl", "{\"prompt\": \"1+1=\"}\n");
  expect_refused(
      "workflow: sft\ndata: {train: rows.jsonl, eval: no-answer.jsonl}\n"
      "eval: {every_steps: 1}\n" +
          train,
      ::testing::StartsWith("no-answer.jsonl:1: has prompt; needs exactly one of: "));
}

TEST_F(RefusedRunsTest, SkippedLongPromptsAreCountedInOneLine) {
  std::string rows = read_file(folder_.path() / "rows.jsonl");
  for (int i = 0; i < 3; ++i) {
    rows += "{\"prompt\": \"" + std::string(61, '1') + "\", \"answer\": \"2\"}\n";
  }
  folder_.write("rows.jsonl", rows);
  folder_.write("run.yaml",
                std::string(kModel) + "workflow: rl\ntrain: {steps: 2, prompts_per_step: 4}\n" +
                    "data: {train: rows.jsonl, eval: rows.jsonl, on_long_prompt: skip}\n" +
                    "eval: {every_steps: 2}\n" + kRollout + kReward);
  const auto ended = folder_.run({"run", "run.yaml"});
  ASSERT_TRUE(ended.has_value()) << "hangs";
  EXPECT_EQ(ended->code, 0) << ended->describe();
  EXPECT_THAT(ended->err,
              HasSubstr("data.train: 3 of 43 prompts are too long and were skipped; the "
                        "first: rows.jsonl:4"));
  EXPECT_THAT(ended->err, HasSubstr("data.eval: 3 of 43 prompts are too long and were skipped; the "
                                    "first: rows.jsonl:4"));
}

}  // namespace
}  // namespace tidemill::test
