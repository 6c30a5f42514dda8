// SPDX-License-Identifier: Apache-2.0
// A reward of the program's own: options for the YAML file, and an actor that judges.
#pragma once

#include <tidemill/actors/reward/handles.hpp>
#include <tidemill/base/schema.hpp>

namespace closeness {

/// `reward: {kind: closeness, scale: 10}`.
struct ClosenessReward {
  double scale = 10.0;
};

// Found by its argument: Tidemill's schema asks for it. Declared where the struct is.
void describe(tidemill::Schema<ClosenessReward>& s);

/// Judges sums: 1 for the right answer, less the further off it is, 0 without a number.
/// Implements `JudgeActor`.
[[nodiscard]] tidemill::actors::JudgeActor::behavior_type judge_closeness(
    tidemill::actors::JudgeActor::pointer self, ClosenessReward options);

}  // namespace closeness
