// SPDX-License-Identifier: Apache-2.0
// Tests `schema` and `explain` for all keys of a run's file.
#include <algorithm>
#include <filesystem>
#include <set>

#include <gmock/gmock.h>

#include "base/schema/reference.hpp"
#include "configs/run_config.hpp"
#include "configs/yaml_tree.hpp"
#include "launcher/commands/json_form.hpp"
#include "tests/launcher/command_run.hpp"
#include "tests/support/json_schema_check.hpp"

namespace tidemill::launcher {
namespace {

using ::testing::HasSubstr;

const std::filesystem::path kSourceFolder = TIDEMILL_SOURCE_DIR;

std::string read(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// Returns all YAML files below `folder`, sorted.
std::vector<std::filesystem::path> yaml_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.path().extension() == ".yaml") {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

class SchemaCommandTest : public CommandTest {
protected:
  // Returns why the schema refuses `text`, or "" if it accepts it.
  [[nodiscard]] std::string problem_of(const std::string& text) const {
    const auto tree = configs::parse_yaml(text, "x.yaml");
    EXPECT_TRUE(tree.ok()) << tree.status().message();
    return test::JsonSchemaCheck::problem(schema_, to_json(tree.value()));
  }

  nlohmann::json schema_ = nlohmann::json::parse(run({"schema"}).out);
};

TEST_F(SchemaCommandTest, PrintsTheSameDocumentWithAndWithoutJson) {
  EXPECT_EQ(schema_.at("$schema"), "http://json-schema.org/draft-07/schema#");
  const Outcome line = run({"schema", "--json"});
  EXPECT_EQ(std::count(line.out.begin(), line.out.end(), '\n'), 1);
  EXPECT_EQ(line.lines().at(0), schema_);
}

TEST_F(SchemaCommandTest, AcceptsEveryFileOfTheProjectAsWrittenAndResolved) {
  std::vector<std::filesystem::path> files = yaml_files(kSourceFolder / "configs");
  for (const auto& file : yaml_files(kSourceFolder / "examples")) {
    if (file.parent_path().filename() != "embed") {  // which adds its own kinds
      files.push_back(file);
    }
  }
  ASSERT_GE(files.size(), 2U);
  for (const auto& file : files) {
    EXPECT_EQ(problem_of(read(file)), "") << file;
    const Outcome printed = run({"check", file.string(), "--print"});
    ASSERT_EQ(printed.code, kDone) << printed.err;
    EXPECT_EQ(problem_of(printed.out), "") << file;
  }
}

const std::string kRl = "workflow: rl\nmodel: {path: m}\ndata: {train: t.jsonl}\n";

TEST_F(SchemaCommandTest, AcceptsWhatTheProgramAccepts) {
  for (const char* text :
       {"reward: [{kind: number, weight: 2}, {kind: regex, pattern: a}]",
        "reward: {kind: regex, pattern: a}", "reward: {}", "seed: 12", "name: 12", "name: null",
        "train: {adapter: {kind: lora, rank: 4}}", "train: {adapter: {rank: 4}}",
        "train: {adapter: {path: a}}", "train: {adapter: {kind: given, path: a}}",
        "train: {adapter: null}", "train: {learning_rate: 1e-4}", "rollout: {kv_bytes: 64MiB}",
        "rollout: {stop: [a, b]}", "rollout: {stop: a}", "algorithm: {name: dapo}"}) {
    const std::string file = write("x.yaml", kRl + text + "\n");
    EXPECT_EQ(run({"check", file}).code, kDone) << text;
    EXPECT_EQ(problem_of(kRl + text), "") << text;
  }
}

TEST_F(SchemaCommandTest, AStructMayBeWrittenAsASingleValue) {
  const std::string head = "workflow: rl\nmodel: {path: m}\n";
  for (const char* text : {"data: {train: a}", "data: {train: [a, b]}", "data: {train: {path: a}}",
                           "data: {train: [{path: a, weight: 2}, {path: b, weight: 1}]}"}) {
    EXPECT_EQ(run({"check", write("x.yaml", head + text + "\n")}).code, kDone) << text;
    EXPECT_EQ(problem_of(head + text), "") << text;
  }
  for (const char* text : {"data: {train: [[a]]}", "data: {train: {weight: 2}}", "data: {}"}) {
    EXPECT_EQ(run({"check", write("x.yaml", head + text + "\n")}).code, kRefused) << text;
    EXPECT_NE(problem_of(head + text), "") << text;
  }
}

TEST_F(SchemaCommandTest, RefusesWhatTheProgramRefuses) {
  for (const char* text :
       {"reward: [{kind: number}, {kind: regex}]", "reward: [number]", "reward: {kind: regex}",
        "reward: {kind: number, pattern: a}", "reward: {kind: numbr}", "reward: {pattern: a}",
        "seed: -1", "name: [a]", "train: {adapter: {kind: given}}",
        "train: {adapter: {kind: lora, path: a}}", "train: {adapter: {rank: 4, path: a}}",
        "rollout: {kv_bytes: 64MB}", "rollout: {top_p: 0}", "rollout: {top_p: 1e-320}",
        "rollout: {repetition_penalty: 1e-320}", "rollout: {top_k: 3000000000}",
        "algorithm: {name: gpro}", "train: null", "train: {sequences_per_step: 2}"}) {
    const std::string file = write("x.yaml", kRl + text + "\n");
    EXPECT_EQ(run({"check", file}).code, kRefused) << text;
    EXPECT_NE(problem_of(kRl + text), "") << text;
  }
}

// Uses the files that the loader must refuse. The test lists those whose mistake a schema cannot
// express, so that no other file is accepted unnoticed.
TEST_F(SchemaCommandTest, RefusesEveryBadFileExceptThoseListedHere) {
  const std::set<std::string> rules{
      "betas_are_three", "dtype_int8_without_adapter", "rl_dtype_int8_without_adapter",
      "dtype_nf4_without_adapter", "rl_dtype_nf4_without_adapter", "adapter_scales_no_target",
      "adapter_layers_with_commas", "adapter_without_layers", "min_improvement_alone",
      "sft_eval_without_data", "keep_best_without_eval", "patience_without_eval",
      "reward_list_is_empty", "reward_name_with_blank", "rewards_of_one_name", "some_data_weighted",
      "chat_variable_of_python", "chat_variable_of_python_in_a_list", "chat_variable_of_the_run",
      "chat_variable_too_large", "eval_samples_all_equal", "eval_without_data", "greedy_rollout",
      "list_is_empty", "minibatches_do_not_divide", "name_is_option", "name_is_path",
      "overlong_buffer_too_long", "reward_command_is_empty", "scale_with_leave_one_out",
      "steps_and_epochs", "stop_is_empty", "text_is_empty", "warmup_too_long",
      // In JSON these values are integers, or a valid number of bytes.
      "integer_with_exponent", "integer_with_fraction", "integer_overflows", "bytes_overflow"};
  std::size_t refused = 0;
  std::size_t not_yaml = 0;
  for (const auto& file : yaml_files(kSourceFolder / "tests/configs/bad")) {
    const std::string text = read(file);
    const std::string name = file.stem().string();
    if (text.find("# arguments:") != std::string::npos) {
      continue;  // the mistake is in an argument
    }
    const auto tree = configs::parse_yaml(text, "x.yaml");
    if (!tree.ok()) {
      ++not_yaml;
      continue;
    }
    const std::string problem = test::JsonSchemaCheck::problem(schema_, to_json(tree.value()));
    EXPECT_EQ(problem.empty(), rules.count(name) == 1) << name << ": " << problem;
    refused += problem.empty() ? 0U : 1U;
  }
  std::printf(
      "bad files: %zu refused, %zu not accepted as YAML, %zu break a rule that a schema cannot "
      "express\n",
      refused, not_yaml, rules.size());
  EXPECT_GE(refused, 45U);
}

// Collects all keys of all workflows and kinds from the schema itself.
class Walk {
public:
  void walk(const schema::StructSchema& structure, const std::string& prefix) {
    if (structure.tag) {
      keys.insert(prefix + structure.tag->name);
      for (const schema::KindSchema& kind : structure.tag->kinds) {
        if (kind.members) {
          walk(*kind.members, prefix);
        }
      }
    }
    for (const schema::FieldSchema& field : structure.fields) {
      keys.insert(prefix + field.name);
      const bool list = field.value.item != nullptr && !field.value.one_or_many;
      const schema::ValueSchema& value =
          field.value.item != nullptr ? *field.value.item : field.value;
      if (value.members) {
        walk(*value.members, prefix + field.name + (list ? "[]." : "."));
      }
    }
  }
  std::set<std::string> keys;
};

TEST_F(SchemaCommandTest, ExplainsEveryKeyOfEveryWorkflowAndKind) {
  const auto schema = Schema<configs::RunConfig>::described();
  Walk all;
  all.walk(schema.structure(), "");
  for (const std::string& key : all.keys) {
    const Outcome text = run({"explain", key});
    EXPECT_EQ(text.code, kDone) << text.err;
    EXPECT_THAT(text.out, HasSubstr(key + ": ")) << key;
    const Outcome json = run({"explain", key, "--json"});
    EXPECT_FALSE(json.lines().empty()) << key;
  }
  std::printf("explained %zu keys\n", all.keys.size());
  EXPECT_GE(all.keys.size(), 90U);
}

// `explain` lists exactly the keys that an editor completes.
TEST_F(SchemaCommandTest, HasTheSameKeysAsExplain) {
  const auto schema = Schema<configs::RunConfig>::described();
  std::set<std::string> explained;
  for (const KeyReference& key : list_keys(schema.structure())) {
    explained.insert(key.path);
  }
  std::set<std::string> completed;
  const auto collect = [&completed](const auto& self, const nlohmann::json& part,
                                    const std::string& prefix) -> void {
    if (part.contains("properties")) {
      for (const auto& [key, value] : part.at("properties").items()) {
        completed.insert(prefix + key);
        self(self, value, prefix + key + '.');
      }
    }
    if (part.contains("anyOf")) {
      for (const nlohmann::json& alternative : part.at("anyOf")) {
        if (!alternative.contains("items")) {  // the element type is an alternative of its own
          self(self, alternative, prefix);
        }
      }
    }
    if (part.contains("items")) {
      self(self, part.at("items"), prefix.substr(0, prefix.size() - 1) + "[].");
    }
  };
  collect(collect, schema_, "");
  EXPECT_EQ(completed, explained);
}

}  // namespace
}  // namespace tidemill::launcher
