// SPDX-License-Identifier: Apache-2.0
#include "workflows/sft_options.hpp"

namespace tidemill::workflows {

void describe(Schema<SftTrainOptions>& s) {
  s.field("sequences_per_step", &SftTrainOptions::sequences_per_step,
          "Sequences in a batch, including those without a target.")
      .range(1, 65536)
      .also_called({"train_batch_size", "per_device_train_batch_size", "batch_size",
                    "gradient_accumulation_steps"});
  s.include(&SftTrainOptions::common);
}

void describe(Schema<SftOptions>& s) {
  s.field("model", &SftOptions::model, "The model that the run starts from.");
  s.field("data", &SftOptions::data,
          R"(Rows: {"text": ...}, {"prompt": ..., "answer": ...}, )"
          R"({"prompt": ..., "completion": ...}, {"messages": [...]}, or {"input_ids": [...]} )"
          R"(with "labels", "loss_mask" or neither.)");
  s.field("train", &SftOptions::train, "How the weights are trained.");
  s.field("eval", &SftOptions::eval, "Evaluation on data.eval: the loss on held-out rows.");
  s.include(&SftOptions::run);
  s.check("data.epochs", [](const SftOptions& o) {
    return o.data.epochs && o.train.common.steps ? "cannot be combined with train.steps" : "";
  });
  s.check("train.warmup_steps", [](const SftOptions& o) {
    return o.train.common.steps && o.train.common.warmup_steps > *o.train.common.steps
               ? "exceeds train.steps"
               : "";
  });
  s.check("model.dtype",
          [](const SftOptions& o) { return untrainable_dtype(o.model.dtype, o.train.common); });
  s.check("eval.every_steps", [](const SftOptions& o) {
    return o.eval.every_steps > 0 && o.data.eval.empty() ? "needs data.eval" : "";
  });
  s.warn("data.eval", [](const SftOptions& o) {
    return o.eval.every_steps == 0 && !o.data.eval.empty() ? "is not used with eval.every_steps: 0"
                                                           : "";
  });
}

}  // namespace tidemill::workflows
