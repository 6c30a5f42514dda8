// SPDX-License-Identifier: Apache-2.0
#include "engines/training_job.hpp"

namespace tidemill::engines {

Status run_to_end(TrainingJob& job) {
  while (job.has_work()) {
    TIDEMILL_RETURN_IF_ERROR(job.advance({}).status());
  }
  return {};
}

}  // namespace tidemill::engines
