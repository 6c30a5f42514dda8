// SPDX-License-Identifier: Apache-2.0
#include "configs/run_config.hpp"

namespace tidemill::configs {

void describe(Schema<RunConfig>& s) {
  s.one_of("workflow", &RunConfig::workflow, "How to train the model, or serve: a server.")
      .kind<workflows::RlOptions>("rl", "Reinforcement learning.")
      .kind<workflows::SftOptions>("sft", "Supervised fine-tuning.")
      .kind<workflows::ServeOptions>("serve", "A server, for `tidemill serve`.")
      .choice_required();
}

}  // namespace tidemill::configs
