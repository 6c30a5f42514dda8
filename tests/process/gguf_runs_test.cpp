// SPDX-License-Identifier: Apache-2.0
// Tests the commands with a model in a GGUF file of int8 blocks: generation, training over it, and
// that training an adapter does not change the base.
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/digest.hpp"
#include "base/tensor/block_int8.hpp"
#include "base/tensor/float_tensor.hpp"
#include "engines/formats/model_files.hpp"
#include "tests/process/run_folder.hpp"
#include "tests/support/gguf_model_writer.hpp"

namespace tidemill::test {
namespace {

using ::testing::HasSubstr;

const std::string kModel = TIDEMILL_SOURCE_DIR "/examples/models/arithmetic";

// Returns a GGUF file of the shipped model with its matrices as blocks. Every byte is a token, so
// the split of GPT-2's tokenizer makes no difference.
std::string arithmetic_file(const engines::ModelFiles& model, const TensorMap& tensors) {
  std::ifstream file(kModel + "/tokenizer.json");
  const auto tokenizer = nlohmann::json::parse(file);
  std::vector<std::string> tokens(257);
  for (const auto& [token, id] : tokenizer["model"]["vocab"].items()) {
    tokens[id.get<std::size_t>()] = token;
  }
  tokens[256] = "<|end|>";
  std::vector<std::int32_t> kinds(257, 1);
  kinds[256] = 3;
  GgufWriter writer;
  add_gguf_keys(writer, model.config);
  writer.text("tokenizer.ggml.model", "gpt2");
  writer.text("tokenizer.ggml.pre", "gpt-2");
  writer.texts("tokenizer.ggml.tokens", tokens);
  writer.integers("tokenizer.ggml.token_type", kinds);
  writer.texts("tokenizer.ggml.merges", {});
  writer.text("tokenizer.chat_template",
              "{% for message in messages %}{{ message.content }}{% endfor %}");
  add_gguf_tensors(writer, model.config, tensors);
  return writer.bytes();
}

TensorMap as_blocks(const TensorMap& tensors) {
  TensorMap blocks;
  for (const auto& [name, tensor] : tensors) {
    blocks[name] = tensor.shape.size() == 2 ? quantize_blocks(tensor, name).value() : tensor;
  }
  return blocks;
}

class GgufRunsTest : public ::testing::Test {
protected:
  GgufRunsTest() {
    folder_.write_rows();
    const engines::ModelFiles model = engines::open_model(kModel).value();
    const TensorMap blocks = as_blocks(model.tensors);
    folder_.write("q8.gguf", arithmetic_file(model, blocks));
    PosixFileSystem files;
    // The same weights in float32.
    EXPECT_TRUE(
        engines::export_model(files, folder_.path() / "wide", model.config, blocks, kModel).ok());
  }
  ~GgufRunsTest() override {
    if (HasFailure()) {
      folder_.keep();
    }
  }

  // Runs a command that must succeed, and returns its output.
  [[nodiscard]] std::string done(const std::vector<std::string>& arguments) const {
    const auto ended = folder_.run(arguments);
    if (!ended.has_value() || ended->code != 0) {
      ADD_FAILURE() << arguments[0] << ": " << (ended.has_value() ? ended->describe() : "hangs");
      return {};
    }
    return ended->out;
  }
  [[nodiscard]] std::string scores(const std::vector<std::string>& model) const {
    folder_.write("texts.jsonl", "{\"prompt\": \"12+34=46\"}\n{\"ids\": [4, 8, 3, 9, 1]}\n");
    std::vector<std::string> command{"score", "--input", "texts.jsonl"};
    command.insert(command.end(), model.begin(), model.end());
    return done(command);
  }

  RunFolder folder_;
};

TEST_F(GgufRunsTest, GeneratesLikeTheSameWeightsInFloat32) {
  EXPECT_EQ(scores({"q8.gguf"}), scores({"wide"}));
  const std::string response = done({"generate", "q8.gguf", "12+34=", "--greedy"});
  EXPECT_EQ(response, done({"generate", "wide", "12+34=", "--greedy"}));
  EXPECT_EQ(response, "46\n");
  EXPECT_EQ(done({"tokenize", "q8.gguf", "12+34="}), done({"tokenize", "wide", "12+34="}));
  folder_.write("chat.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"1+1=\"}]}\n");
  EXPECT_THAT(done({"template", "q8.gguf", "--input", "chat.jsonl"}), HasSubstr("1+1="));
}

TEST_F(GgufRunsTest, AnAdapterCanBeTrainedOverItAndMerged) {
  const std::string before = read_file(folder_.path() / "q8.gguf");
  folder_.write("sft.yaml",
                "workflow: sft\nmodel: {path: q8.gguf}\ndata: {train: rows.jsonl}\n"
                "train: {steps: 2, sequences_per_step: 8, learning_rate: 1e-2, "
                "adapter: {rank: 4, alpha: 8}}\n");
  folder_.write("rl.yaml",
                "workflow: rl\nmodel: {path: q8.gguf}\ndata: {train: rows.jsonl}\n"
                "rollout: {group_size: 4, max_new_tokens: 4}\nreward: {kind: number}\n"
                "train: {steps: 2, prompts_per_step: 4, learning_rate: 1e-2, "
                "adapter: {rank: 4, alpha: 8}}\n");
  for (const std::string name : {"sft", "rl"}) {
    SCOPED_TRACE(name);
    std::ignore = done({"check", name + ".yaml"});
    std::ignore = done({"run", name + ".yaml"});
    const std::string adapter = "runs/" + name + "/export/adapter";
    EXPECT_EQ(read_file(folder_.path() / "q8.gguf"), before);
    const std::string trained = scores({"q8.gguf", "--adapter", adapter});
    EXPECT_NE(trained, scores({"q8.gguf"}));
    EXPECT_EQ(trained, scores({"wide", "--adapter", adapter}));
    EXPECT_EQ(done({"export", "runs/" + name, name + "-merged", "--merge"}),
              name + "-merged: model\n");
    // The merged model has the tokenizer of the GGUF file.
    EXPECT_EQ(done({"tokenize", name + "-merged", "12+34="}), done({"tokenize", "wide", "12+34="}));
    EXPECT_EQ(done({"generate", name + "-merged", "1", "--greedy", "--max-new-tokens", "1"}).size(),
              done({"generate", "q8.gguf", "1", "--adapter", adapter, "--greedy",
                    "--max-new-tokens", "1"})
                  .size());
  }
}

// Trains all parameters: they start as the widened blocks and are exported as float32.
TEST_F(GgufRunsTest, AllParametersAreTrainedFromTheWidenedBlocks) {
  const std::string train =
      "data: {train: rows.jsonl}\ntrain: {steps: 2, sequences_per_step: 8, learning_rate: 1e-3}\n";
  folder_.write("q8.yaml", "workflow: sft\nmodel: {path: q8.gguf}\n" + train);
  folder_.write("wide.yaml", "workflow: sft\nmodel: {path: wide}\n" + train);
  std::ignore = done({"run", "q8.yaml"});
  std::ignore = done({"run", "wide.yaml"});
  const auto opened = engines::open_model(folder_.path() / "runs/q8/export");
  const auto other = engines::open_model(folder_.path() / "runs/wide/export");
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  ASSERT_TRUE(other.ok()) << other.status().to_string();
  EXPECT_EQ(digest_tensors(opened.value().tensors), digest_tensors(other.value().tensors));
  EXPECT_EQ(opened.value().tensors.at("model.embed_tokens.weight").dtype, DType::kF32);
}

}  // namespace
}  // namespace tidemill::test
