// SPDX-License-Identifier: Apache-2.0
#include "workflows/eval_options.hpp"

namespace tidemill::workflows {

void describe(Schema<EvalOptions>& s) {
  s.field("every_steps", &EvalOptions::every_steps,
          "Steps between evaluations on data.eval; 0: none, not even at the end.")
      .range(0, 1e9);
  s.field("keep_best", &EvalOptions::keep_best,
          "Keeps the weights of the best evaluation (rl: by mean@k; sft: by loss); the run ends "
          "with them.");
  s.field("patience", &EvalOptions::patience,
          "Evaluations in a row without a better one that end the run; 0: none do.")
      .range(0, 1e6);
  s.field("min_improvement", &EvalOptions::min_improvement,
          "By how much an evaluation must be better than the best (rl: above it, sft: below it).")
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
