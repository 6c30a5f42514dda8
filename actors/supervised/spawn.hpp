// SPDX-License-Identifier: Apache-2.0
// Starting a trainer of given answers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <caf/fwd.hpp>

#include "actors/commit/run_commit.hpp"
#include "actors/device/handles.hpp"
#include "actors/recorder/handles.hpp"
#include "actors/trainer/best_weights.hpp"
#include "actors/trainer/handles.hpp"
#include "actors/work/work_port.hpp"
#include "engines/train_engine.hpp"

namespace tidemill::actors {

/// Reads batches of sequences by their place in the run.
///
/// Threads: one call at a time. Calls block: they are made through a `WorkPort`.
class SequenceReader {
public:
  SequenceReader() = default;
  SequenceReader(const SequenceReader&) = delete;
  SequenceReader& operator=(const SequenceReader&) = delete;
  virtual ~SequenceReader() = default;

  /// Returns sequences from draw `draw` on, at most `count`; fewer only when the data ends. Their
  /// ids are their draws. Errors: naming file and line.
  [[nodiscard]] virtual Result<std::vector<engines::TrainSequence>> read(std::uint64_t draw,
                                                                         std::uint32_t count) = 0;
};

/// SUPERVISED TRAINER: reads, trains, commits. What it is told, and whom it tells, is as for the
/// trainer of rollouts.
using SupervisedTrainerActor = caf::typed_actor<
    // Begins.
    caf::reacts_to<atom::start>,
    // Finish the step in work, commit, and end.
    caf::reacts_to<atom::stop>,
    // The sequences handed to the port have been read.
    caf::reacts_to<atom::load>,
    // The commit handed to the port is done.
    caf::reacts_to<atom::worked>>;

/// What a supervised trainer is made of.
struct SupervisedDeps {
  std::uint64_t total_steps = 1;
  std::uint32_t sequences_per_step = 1;
  std::uint64_t commit_every = 0;  // steps; 0: only at the end
  std::uint64_t eval_every = 0;    // steps; 0: never
  BestOptions best_options;
  /// Held-out sequences; each evaluation scores them all. Null: none.
  std::shared_ptr<const std::vector<engines::TrainSequence>> eval_sequences;
  Duration train_deadline = std::chrono::minutes(60);
  DeviceActor device;
  RecorderActor recorder;
  RunOwnerActor owner;
  std::shared_ptr<SequenceReader> reader;
  std::shared_ptr<CommitStore> commits;
  WorkPort* read_port = nullptr;  // both outlive the trainer
  WorkPort* commit_port = nullptr;
  engines::Snapshot weights;  // what training starts from
  // Of the commit it goes on from.
  std::optional<BestSoFar> best;
  std::uint64_t evaluated_step = 0;
};

/// Spawns a supervised trainer. Whatever it cannot do ends it, with the failure as its exit reason.
[[nodiscard]] SupervisedTrainerActor spawn_supervised_trainer(caf::actor_system& system,
                                                              SupervisedDeps deps);

}  // namespace tidemill::actors
