// SPDX-License-Identifier: Apache-2.0
// A rollout engine without a model that generates with new weights as soon as they arrive, in the
// middle of responses too.
#pragma once

#include <memory>

#include "engines/replay/factory.hpp"
#include "engines/rollout_engine.hpp"

namespace tidemill::test {

/// Makes an engine that samples the tokens of the replay engine, as many, one for each sequence and
/// iteration. Its responses mix versions if weights arrive while they are in flight. The first
/// token of a response is of `min_step` or a later step.
[[nodiscard]] std::unique_ptr<engines::RolloutEngine> make_mixing_rollout_engine(
    const engines::ReplayOptions& options, const engines::Snapshot& initial);

}  // namespace tidemill::test
