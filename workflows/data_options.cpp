// SPDX-License-Identifier: Apache-2.0
#include "workflows/data_options.hpp"

#include <algorithm>
#include <array>

#include "base/json/json.hpp"

namespace tidemill::workflows {
namespace {

// What a row or the run itself gives to a template.
constexpr std::array<std::string_view, 5> kOwnVariables = {
    "messages", "tools", "documents", "add_generation_prompt", "continue_final_message"};
// Words that mean a switch or nothing to Python or YAML 1.1. As a text, each of them is true.
constexpr std::array<std::string_view, 13> kMistakenWords = {
    "True", "TRUE", "False", "FALSE", "None", "yes", "Yes", "no", "No", "on", "On", "off", "Off"};

// Says what is wrong with the variables of a chat template in `node`, whose path is `path`, or
// returns "".
std::string variables_problem(const ConfigNode& node, const std::string& path) {
  const bool word = node.kind == ConfigNode::Kind::kPlain;
  if (word &&
      std::find(kMistakenWords.begin(), kMistakenWords.end(), node.text) != kMistakenWords.end()) {
    return path + " is the text " + node.text +
           ", which is true; write true, false or null, or put the text in quotes";
  }
  if (word && json_of(node).if_large_integer() != nullptr) {
    return path + " does not fit in 64 bits";
  }
  for (const ConfigNode& item : node.items) {
    if (std::string problem = variables_problem(item, path); !problem.empty()) {
      return problem;
    }
  }
  for (const ConfigEntry& entry : node.entries) {
    if (path.empty() &&
        std::find(kOwnVariables.begin(), kOwnVariables.end(), entry.key) != kOwnVariables.end()) {
      return "cannot set " + entry.key + ", which the run gives to the template";
    }
    const std::string inside = path.empty() ? entry.key : path + '.' + entry.key;
    if (std::string problem = variables_problem(entry.value, inside); !problem.empty()) {
      return problem;
    }
  }
  return "";
}

}  // namespace

void describe(EnumSchema<ModelDType>& e) {
  e.name("f32", ModelDType::kF32, "32-bit floats.")
      .name("bf16", ModelDType::kBf16, "bfloat16 weights with 32-bit accumulation.")
      .name("int8", ModelDType::kInt8,
            "Blocks of 32 8-bit weights that share a scale, as in GGUF's Q8_0. Only an adapter can "
            "be trained; the base stays unchanged.")
      .name("nf4", ModelDType::kNf4,
            "4-bit NormalFloat with double quantization (QLoRA), computed in bf16; the embedding "
            "table and the head are int8 blocks. Only an adapter can be trained.");
}

void describe(EnumSchema<ModelInit>& e) {
  e.name("files", ModelInit::kFiles, "The weights at model.path.")
      .name("random", ModelInit::kRandom,
            "Random values derived from the run's seed; only config.json and the tokenizer are "
            "read.");
}

void describe(EnumSchema<OnBadRow>& e) {
  e.name("error", OnBadRow::kError, "The run is refused with an error that names file and line.")
      .name("skip", OnBadRow::kSkip, "The row is left out; the log gives the number of such rows.");
}

void describe(EnumSchema<OnLongPrompt>& e) {
  e.name("error", OnLongPrompt::kError,
         "The run is refused with an error that names file and line.")
      .name("skip", OnLongPrompt::kSkip,
            "The prompt is left out (sft: the sequence stays in its batch, but has no targets); "
            "the log gives the number.")
      .name("truncate_left", OnLongPrompt::kTruncateLeft,
            "Only its last tokens are kept; the log gives the number of prompts or sequences cut.");
}

void describe(Schema<DataSource>& s) {
  s.field("path", &DataSource::path,
          "A file of rows (JSON Lines, one JSON array or Parquet), or a glob pattern.")
      .required();
  s.field("weight", &DataSource::weight,
          "Rows are drawn from the sources in proportion to their weights, regardless of how many "
          "rows each has. Give a weight to every source or to none.")
      .above(0)
      .at_most(1e9);
  s.short_for("path");
}

void describe(Schema<ModelOptions>& s) {
  s.field("path", &ModelOptions::path, "A directory in the Hugging Face layout, or a GGUF file.")
      .required()
      .also_called(
          {"model_name_or_path", "model_name", "pretrained_model_name_or_path", "base_model"});
  s.field("init", &ModelOptions::init, "Where the initial weights come from.");
  s.field("dtype", &ModelOptions::dtype,
          "Data type of the weights during computation. Without it, bf16 if the files hold bf16, "
          "else f32.")
      .also_called({"torch_dtype", "bf16", "load_in_4bit", "load_in_8bit"});
  s.check("path", [](const ModelOptions& o) { return o.path.empty() ? "is empty" : ""; });
}

void describe(Schema<DataOptions>& s) {
  s.field("train", &DataOptions::train,
          "Files (JSON Lines, one JSON array of rows, or Parquet) or glob patterns to train on: "
          "one, a list, or a list of {path: ..., weight: ...}.")
      .required()
      .one_or_many()
      .also_called(
          {"train_files", "train_file", "train_dataset", "dataset", "dataset_name", "data_files"});
  s.field("eval", &DataOptions::eval,
          "Files or glob patterns to evaluate on; read only if eval.every_steps is above 0.")
      .one_or_many()
      .also_called({"val_files", "eval_dataset", "validation_file", "test_files"});
  s.field(
      "shuffle", &DataOptions::shuffle,
      "Draws the rows in random order, a new one in each epoch; false: in the order of the files.");
  s.field("seed", &DataOptions::seed, "Seed of the row order; without it, the run's seed.")
      .at_least(0)
      .also_called({"data_seed"});
  s.field(
       "epochs", &DataOptions::epochs,
       "Number of passes over the rows; cannot be combined with train.steps. If neither is given, "
       "1.")
      .at_least(1)
      .also_called({"num_train_epochs", "total_epochs", "num_epochs"});
  s.field(
       "max_prompt_tokens", &DataOptions::max_prompt_tokens,
       "Prompts (sft: whole sequences) with more tokens are too long. Without it, the limit is the "
       "model's context (rl: minus rollout.max_new_tokens, and no value raises that limit; sft: a "
       "larger value is refused).")
      .at_least(1)
      .unit("tokens")
      .also_called(
          {"max_prompt_length", "max_length", "max_seq_length", "max_seq_len", "cutoff_len"});
  s.field("on_long_prompt", &DataOptions::on_long_prompt,
          "What happens to a prompt (sft: a sequence) that is too long.")
      .also_called({"filter_overlong_prompts", "truncation", "truncation_mode", "truncation_side"});
  s.field("on_error", &DataOptions::on_error, "What happens if a row cannot be read.");
  s.field("chat", &DataOptions::chat,
          "Renders a row's prompt with the model's chat template, as a user message (sft: and its "
          "answer or completion as an assistant message); false: they are plain text.")
      .also_called({"apply_chat_template"});
  s.field("system", &DataOptions::system,
          "System message for conversations that do not begin with one; needs chat, or rows with "
          "messages.")
      .also_called({"system_prompt"});
  s.field(
       "chat_template_kwargs", &DataOptions::chat_template_kwargs,
       "Variables of the chat template, such as {enable_thinking: false}. They apply wherever the "
       "run renders messages.")
      .also_called({"apply_chat_template_kwargs", "enable_thinking"});
  s.check("chat_template_kwargs",
          [](const DataOptions& o) { return variables_problem(o.chat_template_kwargs, ""); });
  s.check("train", [](const DataOptions& o) -> std::string {
    const auto unnamed = [](const DataSource& source) { return source.path.empty(); };
    return o.train.empty() || std::any_of(o.train.begin(), o.train.end(), unnamed)
               ? "needs at least one file, and no empty path"
               : "";
  });
  s.check("train", [](const DataOptions& o) {
    const auto weighted = std::count_if(o.train.begin(), o.train.end(),
                                        [](const DataSource& source) { return source.weight; });
    return weighted != 0 && weighted != static_cast<std::ptrdiff_t>(o.train.size())
               ? "gives a weight to only some of the paths; give one to all or to none"
               : "";
  });
  s.check("eval", [](const DataOptions& o) {
    return std::count(o.eval.begin(), o.eval.end(), "") > 0 ? "contains an empty path" : "";
  });
}

}  // namespace tidemill::workflows
