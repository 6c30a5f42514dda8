// SPDX-License-Identifier: Apache-2.0
#include "engines/training_job.hpp"

namespace tidemill::engines {

Status TokenLoss::token_gradients(const LossTokens& /*tokens*/) {
  return {Errc::kUnimplemented, "the loss does not compute the gradients of single tokens"};
}

Status run_to_end(TrainingJob& job) {
  while (job.has_work()) {
    TIDEMILL_ASSIGN_OR_RETURN(const StepReport report, job.advance({}));
    if (report.waits_for_pages) {
      return {Errc::kUnavailable, "other jobs hold the pages of the cache"};
    }
  }
  return {};
}

}  // namespace tidemill::engines
