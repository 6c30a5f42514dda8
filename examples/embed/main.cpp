// SPDX-License-Identifier: Apache-2.0
// Tidemill's program with an additional reward and an additional algorithm:
//   closeness run run.yaml
//   closeness explain reward
#include <iostream>
#include <string>
#include <tidemill/actors/reward/scorer_engine.hpp>
#include <tidemill/launcher/additions.hpp>
#include <tidemill/launcher/commands/commands.hpp>
#include <tidemill/launcher/program.hpp>
#include <vector>

#include <caf/all.hpp>

#include "closeness_reward.hpp"
#include "median_advantages.hpp"

namespace {

// Adds the reward and the algorithm to the schema of the YAML file.
tidemill::Status add_to_schema(tidemill::Schema<tidemill::configs::RunConfig>& schema) {
  TIDEMILL_RETURN_IF_ERROR(schema.add_kind<closeness::ClosenessReward>(
      "reward", "closeness", "Higher for responses closer to the reference answer."));
  tidemill::workflows::AlgorithmOptions median;
  median.clip_high = 0.28;
  return schema.add_preset("algorithm", "median", "rewards minus the median of their group",
                           median);
}

tidemill::Result<std::unique_ptr<tidemill::engines::RewardEngine>> make_closeness(
    const tidemill::OneOf& scoring, const tidemill::workflows::RewardEnvironment& environment) {
  const auto scorer = environment.system.spawn(closeness::score_closeness,
                                               *scoring.get<closeness::ClosenessReward>());
  return tidemill::actors::make_scorer_engine(environment.system, scorer);
}

}  // namespace

int main(int argc, char** argv) {
  tidemill::launcher::Additions mine;
  mine.schema = add_to_schema;
  mine.run.rewards["closeness"] = make_closeness;
  mine.run.advantages["median"] = closeness::median_advantages;
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  return tidemill::launcher::run_program(arguments, tidemill::launcher::all_commands(), std::cout,
                                         std::cerr, mine);
}
