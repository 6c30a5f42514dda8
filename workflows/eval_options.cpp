// SPDX-License-Identifier: Apache-2.0
#include "workflows/eval_options.hpp"

namespace tidemill::workflows {

void describe(Schema<EvalOptions>& s) {
  s.field(
       "every_steps", &EvalOptions::every_steps,
       "Steps between evaluations on data.eval; the weights of the last step are evaluated too; 0: "
       "no evaluation.")
      .range(0, 1e9)
      .also_called({"eval_steps", "test_freq", "eval_strategy", "evaluation_strategy"});
  s.field(
       "keep_best", &EvalOptions::keep_best,
       "Keeps the weights of the best evaluation (rl: highest mean@k; sft: lowest loss); the run "
       "exports them instead of the last ones.")
      .also_called({"load_best_model_at_end"});
  s.field("patience", &EvalOptions::patience,
          "Ends the run after this many evaluations in a row without an improvement; 0: never.")
      .range(0, 1e6)
      .also_called({"early_stopping_patience"});
  s.field(
       "min_improvement", &EvalOptions::min_improvement,
       "An evaluation is an improvement if it beats the best one by more than this (rl: in mean@k; "
       "sft: in loss).")
      .range(0, 1e9);
  s.check("keep_best", [](const EvalOptions& o) {
    return o.keep_best && o.every_steps == 0 ? "needs eval.every_steps" : "";
  });
  s.check("patience", [](const EvalOptions& o) {
    return o.patience > 0 && o.every_steps == 0 ? "needs eval.every_steps" : "";
  });
  s.check("min_improvement", [](const EvalOptions& o) {
    return o.min_improvement > 0 && !o.keep_best && o.patience == 0
               ? "needs eval.keep_best or eval.patience"
               : "";
  });
}

}  // namespace tidemill::workflows
