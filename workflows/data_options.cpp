// SPDX-License-Identifier: Apache-2.0
#include "workflows/data_options.hpp"

#include <algorithm>

namespace tidemill::workflows {

void describe(EnumSchema<ModelDType>& e) {
  e.name("f32", ModelDType::kF32, "32-bit floats.")
      .name("bf16", ModelDType::kBf16, "bfloat16 weights, 32-bit accumulation.")
      .name("int8", ModelDType::kInt8,
            "Blocks of 32 weights with a scale, as in GGUF's Q8_0; for adapters, over a base that "
            "stays as it is.")
      .name("nf4", ModelDType::kNf4,
            "4-bit NormalFloat with double quantisation (QLoRA), computed in bf16; embedding table "
            "and head in int8 blocks; for adapters, as int8.");
}

void describe(EnumSchema<ModelInit>& e) {
  e.name("files", ModelInit::kFiles, "The directory's weights.")
      .name("random", ModelInit::kRandom,
            "Random numbers that the run's seed draws; config.json and the tokenizer are enough.");
}

void describe(EnumSchema<OnBadRow>& e) {
  e.name("error", OnBadRow::kError, "The run ends, naming file and line.")
      .name("skip", OnBadRow::kSkip, "The row is left out and counted.");
}

void describe(EnumSchema<OnLongPrompt>& e) {
  e.name("error", OnLongPrompt::kError, "The run does not begin, naming file and line.")
      .name("skip", OnLongPrompt::kSkip,
            "It is passed over (sft: its loss is masked), and such ones are counted.")
      .name("truncate_left", OnLongPrompt::kTruncateLeft, "Its last tokens are kept.");
}

void describe(Schema<DataSource>& s) {
  s.field("path", &DataSource::path, "A JSONL file, or a glob.").required();
  s.field("weight", &DataSource::weight,
          "Rows are drawn in proportion to it, whatever their number; all sources have one, or "
          "none.")
      .above(0)
      .at_most(1e9);
  s.short_for("path");
}

void describe(Schema<ModelOptions>& s) {
  s.field("path", &ModelOptions::path, "A Hugging Face directory, or a GGUF file.").required();
  s.field("init", &ModelOptions::init, "Where the first weights come from.");
  s.field("dtype", &ModelOptions::dtype,
          "What weights are computed in; without it as the files hold them, f16 as f32.");
  s.check("path", [](const ModelOptions& o) { return o.path.empty() ? "is empty" : ""; });
}

void describe(Schema<DataOptions>& s) {
  s.field("train", &DataOptions::train,
          "JSONL files, or globs, to train on; with weights: a list of {path: ..., weight: ...}.")
      .required()
      .one_or_many();
  s.field("eval", &DataOptions::eval, "JSONL files, or globs, to evaluate on.").one_or_many();
  s.field("shuffle", &DataOptions::shuffle, "Draws rows in a random order, a new one each epoch.");
  s.field("seed", &DataOptions::seed, "Seeds the order of rows; without it the run's seed does.")
      .at_least(0);
  s.field("epochs", &DataOptions::epochs,
          "Passes over the rows; without it one, or as many as train.steps needs.")
      .at_least(1);
  s.field("max_prompt_tokens", &DataOptions::max_prompt_tokens,
          "Prompts (sft: whole sequences) above this are too long; without it, those that leave no "
          "room for an answer in the model's context.")
      .at_least(1)
      .unit("tokens");
  s.field("on_long_prompt", &DataOptions::on_long_prompt,
          "What a prompt (sft: a sequence) that is too long does.");
  s.field("on_error", &DataOptions::on_error, "What a row that cannot be read does.");
  s.field(
      "chat", &DataOptions::chat,
      "A row's prompt is what the user says, through the model's chat template (sft: its answer "
      "what the assistant says); else both are text as they stand.");
  s.field(
      "system", &DataOptions::system,
      "A system message before all messages that have none; needs chat, or rows with messages.");
  s.check("train", [](const DataOptions& o) -> std::string {
    const auto unnamed = [](const DataSource& source) { return source.path.empty(); };
    return o.train.empty() || std::any_of(o.train.begin(), o.train.end(), unnamed)
               ? "needs at least one file, and no empty name"
               : "";
  });
  s.check("train", [](const DataOptions& o) {
    const auto weighted = std::count_if(o.train.begin(), o.train.end(),
                                        [](const DataSource& source) { return source.weight; });
    return weighted != 0 && weighted != static_cast<std::ptrdiff_t>(o.train.size())
               ? "gives a weight to some of the paths; give one to all, or to none"
               : "";
  });
  s.check("eval", [](const DataOptions& o) {
    return std::count(o.eval.begin(), o.eval.end(), "") > 0 ? "holds an empty name" : "";
  });
}

}  // namespace tidemill::workflows
