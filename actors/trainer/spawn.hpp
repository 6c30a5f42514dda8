// SPDX-License-Identifier: Apache-2.0
// Spawns the trainer of a reinforcement-learning run.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
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

/// Options of the trainer.
struct TrainerOptions {
  std::uint32_t groups_per_step = 1;
  std::uint64_t total_steps = 1;
  std::uint64_t max_staleness = 0;
  /// If true, batch k consists of the groups from k * groups_per_step up to, but not including,
  /// (k + 1) * groups_per_step, except those that have left; see `GenerationOrder::kFixed`.
  bool fixed_batches = false;
  std::uint32_t minibatches = 1;  // per batch, cut by whole groups; one optimizer step each
  std::uint32_t epochs = 1;
  float temperature = 1.0F;  // of the rollouts; 1 when greedy
  /// The length limit of responses, which the trainer's probes obey too. Units: tokens.
  std::int32_t max_new_tokens = std::numeric_limits<std::int32_t>::max();
  bool recompute_proximal = false;
  bool mask_truncated = false;     // do not train on responses cut off at the length limit
  std::uint64_t commit_every = 0;  // steps; 0: only at the end
  /// The time after which a step is committed although its number is not due. 0: none.
  Duration commit_interval{0};
  std::uint64_t eval_every = 0;  // steps, and after the last one; 0: never
  BestOptions best;
  /// The run ends once the groups that have left untrained since the last step would fill this many
  /// batches. If more of them were lost than filtered, the trainer fails with `kUnavailable`.
  /// Otherwise the run ends with `RunEnd::kNoSignal`. The trainer checks this each time no batch
  /// was ready within `batch_wait`.
  std::uint32_t max_untrained_batches = 100;
  Duration batch_wait = std::chrono::seconds(5);
  Duration train_deadline = std::chrono::minutes(60);
};

/// Dependencies of a trainer.
struct TrainerDeps {
  TrainerOptions options;
  StreamActor stream;
  TrainingActor training;
  ServingActor serving;  // generates probes
  KeeperActor keeper;
  RecorderActor recorder;
  EvaluatorActor evaluator;  // null: none
  RunListenerActor listener;
  std::shared_ptr<CommitStore> commits;
  WorkPort* commit_port = nullptr;  // writes commits; both ports outlive the trainer
  WorkPort* io_port = nullptr;      // frees weights that are no longer needed
  /// Names of the rewards in a weighted sum, for the records; empty for a single reward.
  std::vector<std::string> reward_parts;
  /// The weights that training starts from. Their version is the step that the run has reached.
  engines::Snapshot weights;
  // State of the commit that the run resumes from.
  std::optional<BestSoFar> best;
  std::uint64_t evaluated_step = 0;
};

/// Spawns a trainer. On any failure it exits with the failure as its exit reason, and the run
/// returns to its last commit.
[[nodiscard]] TrainerActor spawn_trainer(caf::actor_system& system, TrainerDeps deps);

}  // namespace tidemill::actors
