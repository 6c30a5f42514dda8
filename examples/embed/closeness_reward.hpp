// SPDX-License-Identifier: Apache-2.0
// The program's own reward: options for the YAML file, and an actor that scores responses.
#pragma once

#include <tidemill/actors/reward/handles.hpp>
#include <tidemill/base/schema/schema.hpp>

namespace closeness {

/// `reward: {kind: closeness, scale: 10}`.
struct ClosenessReward {
  double scale = 10.0;
};

// Tidemill's schema finds this function by argument-dependent lookup, so it is declared in the
// namespace of the struct.
void describe(tidemill::Schema<ClosenessReward>& s);

/// Implements `ScorerActor`. The reward is 1 for the correct number, less the farther the response
/// is from it, and 0 if the response does not end with a number.
[[nodiscard]] tidemill::actors::ScorerActor::behavior_type score_closeness(
    tidemill::actors::ScorerActor::pointer self, ClosenessReward options);

}  // namespace closeness
