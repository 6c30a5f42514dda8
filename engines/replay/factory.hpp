// SPDX-License-Identifier: Apache-2.0
// Engines without a model, for simulation and scheduling studies: lengths and times are given,
// tokens and weights are hashes. Whoever trains on other rows, in another order, on rows sampled by
// other weights, or goes on with another optimizer state, ends with another digest.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/clock.hpp"
#include "engines/reward_engine.hpp"
#include "engines/rollout_engine.hpp"
#include "engines/train_engine.hpp"

namespace tidemill::engines {

/// Makes the length of a response from its sample id.
using LengthOf = std::function<std::uint32_t(SampleId)>;

/// How a replayed engine spends virtual time.
struct ReplayOptions {
  /// Sequences generated at the same time; more wait.
  std::int64_t slots = 16;
  /// Virtual time of one decode iteration, whatever is in it.
  Duration decode_time = std::chrono::milliseconds(20);
  /// Virtual time to train on one token.
  Duration train_time_per_token = std::chrono::microseconds(50);
  /// Length of each response. Null: 1 to 8 tokens, drawn from the sample id.
  LengthOf length_of;
  std::uint64_t seed = 0;
};

/// The weights every replayed run starts from.
[[nodiscard]] Snapshot replay_initial_snapshot(std::uint64_t seed);

/// Makes an engine whose tokens depend on (seed, sample id, position, serving weights).
/// It loads, gates on `min_step` and finishes exactly as the transformer's engine does.
[[nodiscard]] std::unique_ptr<RolloutEngine> make_replay_rollout_engine(
    const ReplayOptions& options, const Snapshot& initial);

/// Makes a trainer whose weights are the digest of everything it has been trained on.
/// `logprobs` and `score` answer what the replayed rollout engine reports for the same weights.
[[nodiscard]] std::unique_ptr<TrainEngine> make_replay_train_engine(const ReplayOptions& options,
                                                                    const Snapshot& initial);

/// Makes a reward engine that scores by a hash of the response: 0 or 1, and an error instead for
/// one in `one_in_fails` samples (0: never), each time it is asked.
[[nodiscard]] std::unique_ptr<RewardEngine> make_replay_reward_engine(std::uint64_t seed,
                                                                      std::uint64_t one_in_fails);

}  // namespace tidemill::engines
