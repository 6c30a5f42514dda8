// SPDX-License-Identifier: Apache-2.0
#include "workflows/data_options.hpp"

#include <algorithm>

namespace tidemill::workflows {

void describe(EnumSchema<ModelDType>& e) {
  e.name("f32", ModelDType::kF32, "32-bit floats.")
      .name("bf16", ModelDType::kBf16, "bfloat16 weights, 32-bit accumulation.");
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

void describe(Schema<ModelOptions>& s) {
  s.field("path", &ModelOptions::path, "A Hugging Face directory.").required();
  s.field("init", &ModelOptions::init, "Where the first weights come from.");
  s.field("dtype", &ModelOptions::dtype,
          "What weights are computed in; without it as the files hold them, f16 as f32.");
  s.check("path", [](const ModelOptions& o) { return o.path.empty() ? "is empty" : ""; });
}

void describe(Schema<DataOptions>& s) {
  s.field("train", &DataOptions::train, "JSONL files, or globs, to train on.")
      .required()
      .one_or_many();
  s.field("eval", &DataOptions::eval, "JSONL files, or globs, to evaluate on.").one_or_many();
  s.field("shuffle", &DataOptions::shuffle, "Draws rows in a random order, a new one each epoch.");
  s.field("seed", &DataOptions::seed, "Seeds the order of rows; without it the run's seed does.");
  s.field("epochs", &DataOptions::epochs,
          "Passes over the rows; without it one, or as many as train.steps needs.")
      .at_least(1);
  s.field("max_prompt_tokens", &DataOptions::max_prompt_tokens,
          "Prompts (sft: whole sequences) above this are too long; without it, those that leave no "
          "room for an answer in the model's context.")
      .at_least(1)
      .unit("tokens");
  s.field("on_long_prompt", &DataOptions::on_long_prompt,
          "What a prompt (sft: a sequence, whose loss is then masked) that is too long does.");
  s.field("on_error", &DataOptions::on_error, "What a row that cannot be read does.");
  s.check("train", [](const DataOptions& o) -> std::string {
    return o.train.empty() || std::count(o.train.begin(), o.train.end(), "") > 0
               ? "needs at least one file, and no empty name"
               : "";
  });
  s.check("eval", [](const DataOptions& o) {
    return std::count(o.eval.begin(), o.eval.end(), "") > 0 ? "holds an empty name" : "";
  });
}

}  // namespace tidemill::workflows
