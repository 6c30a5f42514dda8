// SPDX-License-Identifier: Apache-2.0
#include "closeness_reward.hpp"

#include <cmath>

#include <caf/all.hpp>

#include "base/numbers.hpp"

namespace closeness {

using tidemill::engines::RewardRequest;
using tidemill::engines::RewardResult;

void describe(tidemill::Schema<ClosenessReward>& s) {
  s.field("scale", &ClosenessReward::scale, "The distance that halves the reward.").above(0);
}

tidemill::actors::JudgeActor::behavior_type judge_closeness(
    tidemill::actors::JudgeActor::pointer /*self*/, ClosenessReward options) {
  return {[options](tidemill::atom::score, const RewardRequest& request) {
    RewardResult result;
    const auto right = trailing_number(request.answer);
    if (!right.has_value()) {
      result.error = "the row's answer is no number";
    } else if (const auto given = trailing_number(request.response); given.has_value()) {
      result.reward = 1.0 / (1.0 + std::abs(*given - *right) / options.scale);
    }
    return result;
  }};
}

}  // namespace closeness
