// SPDX-License-Identifier: Apache-2.0
// Measures how many samples pass through the actors of a run whose engines cost nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.hpp"

namespace tidemill::bench {

/// How many samples have to pass in a second.
inline constexpr double kScaleTargetRate = 5e4;

/// What is measured.
struct ScaleMeasure {
  std::vector<std::uint32_t> processes = {1, 2, 4};  // with rollout workers
  std::uint64_t samples = 20'000;                    // of each repetition, at least
  std::uint32_t repetitions = 3;                     // after one that warms up
  std::uint32_t group_size = 8;
  std::uint32_t groups_per_step = 32;
  std::uint32_t steps_in_flight = 4;  // so many batches of rows are admitted at a time
  std::int32_t response_tokens = 32;
};

/// Samples that pass through a run with this many rollout processes. Medians of the repetitions.
struct ScaleFigure {
  std::uint32_t processes = 0;  // 0: the rollout worker is in the process of the run
  double samples_per_second = 0.0;
  // Processor time of a sample.
  double owner_us = 0.0;    // of the process of the run
  double actors_us = 0.0;   // the part of it that its actors take, which share one thread
  double rollout_us = 0.0;  // of all rollout processes
};

/// Measures a run with each number of processes, and with none for comparison. The source, the
/// stream, gates, links, proxies, devices, rollout workers, the reward worker with exact matches
/// and the advantage worker with GRPO are those of a run. Devices have the replay engine, whose
/// tokens are hashes. A stand-in for the keeper and the trainer admits groups, leases whole batches
/// in their order, decodes them and acks them, and publishes nothing.
/// Starts processes by forking, so the caller must have no other thread.
/// Errors: `kUnavailable` if a process or a socket cannot be made, or the samples take minutes.
[[nodiscard]] Result<std::vector<ScaleFigure>> measure_scale(const ScaleMeasure& how);

}  // namespace tidemill::bench
