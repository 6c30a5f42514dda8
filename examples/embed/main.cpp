// SPDX-License-Identifier: Apache-2.0
// Tidemill's program with a reward and an algorithm more:
//   closeness run run.yaml
//   closeness explain reward
#include <iostream>
#include <string>
#include <tidemill/actors/reward/judge_engine.hpp>
#include <tidemill/launcher/additions.hpp>
#include <tidemill/launcher/commands/commands.hpp>
#include <tidemill/launcher/program.hpp>
#include <vector>

#include <caf/all.hpp>

#include "closeness_reward.hpp"
#include "median_advantages.hpp"

namespace {

// What the YAML file may say more.
tidemill::Status add_to_schema(tidemill::Schema<tidemill::configs::RunConfig>& schema) {
  TIDEMILL_RETURN_IF_ERROR(schema.add_kind<closeness::ClosenessReward>(
      "reward", "closeness", "More for answers nearer to the reference."));
  tidemill::workflows::AlgorithmOptions median;
  median.clip_high = 0.28;
  return schema.add_preset("algorithm", "median", "rewards less the median of their group", median);
}

tidemill::Result<std::unique_ptr<tidemill::engines::RewardEngine>> make_closeness(
    const tidemill::OneOf& scoring, const tidemill::workflows::RewardPlace& place) {
  const auto judge =
      place.system.spawn(closeness::judge_closeness, *scoring.get<closeness::ClosenessReward>());
  return tidemill::actors::make_judge_engine(place.system, judge);
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
