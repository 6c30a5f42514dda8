// SPDX-License-Identifier: Apache-2.0
// Starting a trainer of rollouts.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <caf/fwd.hpp>

#include "actors/commit/run_commit.hpp"
#include "actors/device/handles.hpp"
#include "actors/evaluator/handles.hpp"
#include "actors/keeper/handles.hpp"
#include "actors/recorder/handles.hpp"
#include "actors/stream/handles.hpp"
#include "actors/trainer/best_weights.hpp"
#include "actors/trainer/handles.hpp"
#include "actors/work/work_port.hpp"

namespace tidemill::actors {

/// How rollouts are trained on.
struct TrainerOptions {
  std::uint32_t groups_per_step = 1;
  std::uint64_t total_steps = 1;
  std::uint64_t max_staleness = 0;
  /// Batch k is the groups [k, k + 1) * groups_per_step, whatever is left of them; see
  /// ScheduleKind.
  bool fixed_batches = false;
  std::uint32_t minibatches = 1;  // optimizer steps a batch is cut into, by whole groups
  std::uint32_t epochs = 1;
  float temperature = 1.0F;  // of the rollouts; 1 when greedy
  bool recompute_proximal = false;
  bool mask_truncated = false;     // answers cut by length carry no loss
  std::uint64_t commit_every = 0;  // steps; 0: only at the end
  std::uint64_t eval_every = 0;    // steps; 0: never
  BestOptions best;
  /// A run whose groups all leave untrained ends after this many batches' worth of them without a
  /// step: well (`RunEnd::kNoSignal`) when they were filtered, with `kUnavailable` when they were
  /// lost. Looked at whenever no batch was ready for `batch_wait`.
  std::uint32_t max_untrained_batches = 100;
  Duration batch_wait = std::chrono::seconds(5);
  Duration train_deadline = std::chrono::minutes(60);
};

/// What a trainer is made of.
struct TrainerDeps {
  TrainerOptions options;
  StreamActor stream;
  DeviceActor device;
  KeeperActor keeper;
  RecorderActor recorder;
  EvaluatorActor evaluator;  // null: none
  RunOwnerActor owner;
  std::shared_ptr<CommitStore> commits;
  WorkPort* commit_port = nullptr;  // outlives the trainer
  std::function<std::string(const std::vector<std::int32_t>&)> decode;
  /// Names of the parts of a sum of rewards, for the records; empty for a single reward.
  std::vector<std::string> reward_parts;
  /// The weights training starts from; their version is where the run stands.
  engines::Snapshot weights;
  // Of the commit it goes on from.
  std::optional<BestSoFar> best;
  std::uint64_t evaluated_step = 0;
};

/// Spawns a trainer. Whatever it cannot do ends it, with the failure as its exit reason: the run
/// then goes back to its last commit.
[[nodiscard]] TrainerActor spawn_trainer(caf::actor_system& system, TrainerDeps deps);

}  // namespace tidemill::actors
