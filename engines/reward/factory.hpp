// SPDX-License-Identifier: Apache-2.0
// Creates reward engines.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/result.hpp"
#include "base/status.hpp"
#include "engines/reward/reward_options.hpp"
#include "engines/reward_engine.hpp"

namespace tidemill::engines {

/// Creates the engine of one reward. Starts the program of a `command`, so that a program that
/// cannot be executed is reported before the run begins.
///
/// `clock` must outlive the engine. Time limits and pauses before restarts use only this clock.
/// Errors: `kInvalidArgument` naming the option (`pattern`, `tolerance`, `command`, ...);
/// `kUnavailable` if the program cannot be started.
[[nodiscard]] Result<std::unique_ptr<RewardEngine>> make_reward_engine(const RewardOptions& options,
                                                                       const Clock& clock);

/// One reward of several.
struct RewardPart {
  std::string name;     // its errors begin with this name
  double weight = 1.0;  // finite
  std::unique_ptr<RewardEngine> engine;
};

/// Creates an engine that scores every sample with every part. The reward is the sum over the
/// parts, in their order, of weight times reward. Results also hold the reward of each part. A
/// sample that a part cannot score has no reward, and the first such part provides its error.
/// Requires at least one part.
[[nodiscard]] std::unique_ptr<RewardEngine> make_reward_sum(std::vector<RewardPart> parts);

/// Creates a check that the reward can compare responses with a row's reference answer. Callers
/// apply it to every row before generating anything. Returns an empty function for a `command`,
/// which accepts every reference answer.
/// Errors: those of `make_reward_engine`, except that no program is started. Errors of the check:
/// `kInvalidArgument`.
[[nodiscard]] Result<ReferenceAnswerCheck> make_reference_answer_check(
    const RewardOptions& options);

/// Starts the guard of this process: a process that waits until this one has ended, however it
/// ends, and then kills its reward programs and what they have started. Nothing of that lives on
/// for more than two seconds, except a process that has replaced its environment, and a process
/// whose guard was killed before it. The guard is in a session of its own, and ends itself.
///
/// It is a copy of this process, so call this early, and only while the process has one thread.
/// Errors: `kUnavailable` if the system cannot create a pipe or a process.
[[nodiscard]] Status start_program_guard();

}  // namespace tidemill::engines
