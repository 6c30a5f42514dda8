// SPDX-License-Identifier: Apache-2.0
// What the options of a run say about the role "reward", in whichever process it is.
#pragma once

#include <functional>
#include <memory>

#include "actors/data/text_codec.hpp"
#include "base/result.hpp"
#include "engines/reward_engine.hpp"
#include "workflows/rl/reward_role.hpp"
#include "workflows/rl_options.hpp"

namespace tidemill::workflows {

/// Returns the options of the role, without its log and ports. `make` makes a reward engine. It has
/// succeeded before: if it fails later, the actor that gets the engine ends when it first needs it,
/// and the supervisor decides what happens.
[[nodiscard]] RewardRoleOptions reward_role_options(
    const RlOptions& options, const actors::TextCodec& codec,
    std::function<Result<std::unique_ptr<engines::RewardEngine>>()> make);

}  // namespace tidemill::workflows
