// SPDX-License-Identifier: Apache-2.0
#include "closeness_reward.hpp"

#include <cmath>

#include <caf/all.hpp>

#include "base/numbers.hpp"

namespace closeness {

using tidemill::engines::RewardRequest;
using tidemill::engines::RewardResult;

void describe(tidemill::Schema<ClosenessReward>& s) {
  s.field("scale", &ClosenessReward::scale,
          "The distance from the reference answer at which the reward is one half.")
      .above(0);
}

tidemill::actors::ScorerActor::behavior_type score_closeness(
    tidemill::actors::ScorerActor::pointer /*self*/, ClosenessReward options) {
  return {[options](tidemill::atom::score, const RewardRequest& request) {
    RewardResult result;
    const auto expected = trailing_number(request.reference_answer);
    if (!expected.has_value()) {
      result.error = "the reference answer is not a number";
    } else if (const auto given = trailing_number(request.response); given.has_value()) {
      result.reward = 1.0 / (1.0 + std::abs(*given - *expected) / options.scale);
    }
    return result;
  }};
}

}  // namespace closeness
