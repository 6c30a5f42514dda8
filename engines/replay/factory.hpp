// SPDX-License-Identifier: Apache-2.0
// Engines without a model, for simulation and scheduling studies. The caller gives lengths and
// times. Tokens and weights are hashes, so the digest of the weights shows how they were trained:
// it differs if the rows, their order, the weights that sampled them or the optimizer's state
// differ.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/clock.hpp"
#include "engines/reward_engine.hpp"
#include "engines/rollout_engine.hpp"
#include "engines/training_job.hpp"

namespace tidemill::engines {

/// Returns the length of the response to a sample.
using LengthOf = std::function<std::uint32_t(SampleId)>;

/// How a replay engine spends virtual time.
struct ReplayOptions {
  /// The maximum number of sequences generated at the same time; others wait.
  std::int64_t slots = 16;
  /// Virtual time of one decode iteration, regardless of its size.
  Duration decode_time = std::chrono::milliseconds(20);
  /// Virtual time to train on one token.
  Duration train_time_per_token = std::chrono::microseconds(50);
  /// Returns the length of each response. If null, lengths are 1 to 8 tokens, hashed from the
  /// `draw_key`.
  LengthOf length_of;
  std::uint64_t seed = 0;
  /// Measures the time limits of requests, and must outlive the engine. If null, requests with a
  /// time limit are refused.
  const Clock* clock = nullptr;
};

/// Returns the weights that every replayed run starts from.
[[nodiscard]] Snapshot replay_initial_snapshot(std::uint64_t seed);

/// Makes an engine whose tokens depend on (seed, `draw_key`, position, serving weights).
/// It loads weights, waits for `min_step`, limits the time of requests and finishes responses
/// exactly as the rollout view of a model does.
[[nodiscard]] std::unique_ptr<RolloutEngine> make_replay_rollout_engine(
    const ReplayOptions& options, const Snapshot& initial);

/// Makes a trainer whose weights are the digest of everything it has been trained on.
/// `logprobs` and `score` return what the replay rollout engine reports for the same weights.
[[nodiscard]] std::unique_ptr<TrainingJob> make_replay_training_job(const ReplayOptions& options,
                                                                    const Snapshot& initial);

/// Makes a reward engine that scores a response 0 or 1 by its hash. About one in `fail_one_in`
/// samples gets an error instead, every time it is scored. If it is 0, no sample gets an error.
[[nodiscard]] std::unique_ptr<RewardEngine> make_replay_reward_engine(std::uint64_t seed,
                                                                      std::uint64_t fail_one_in);

}  // namespace tidemill::engines
