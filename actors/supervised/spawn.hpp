// SPDX-License-Identifier: Apache-2.0
// Spawns the trainer of a supervised run.
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
#include "engines/training_job.hpp"

namespace tidemill::actors {

/// Reads batches of sequences by their position in the run.
///
/// Threads: one call at a time. Calls block, so the trainer makes them through a `WorkPort`.
class SequenceReader {
public:
  SequenceReader() = default;
  SequenceReader(const SequenceReader&) = delete;
  SequenceReader& operator=(const SequenceReader&) = delete;
  virtual ~SequenceReader() = default;

  /// Returns `count` sequences from draw `draw` on, or fewer if the data ends. The id of a sequence
  /// is its draw.
  /// Errors: those of the data, naming file and line.
  [[nodiscard]] virtual Result<std::vector<engines::TrainSequence>> read(std::uint64_t draw,
                                                                         std::uint32_t count) = 0;
};

/// SUPERVISED TRAINER: reads sequences, trains on them, and commits. Its listener gets the same
/// summary as from the trainer in `actors/trainer/handles.hpp`.
using SupervisedTrainerActor = caf::typed_actor<
    // Starts training.
    caf::reacts_to<atom::start>,
    // Finishes the current step, commits, and ends. An evaluation in progress is abandoned.
    caf::reacts_to<atom::stop>,
    // The port has read a batch of sequences.
    caf::reacts_to<atom::load>,
    // The port has written a commit, or failed to.
    caf::reacts_to<atom::worked>>;

/// Options and dependencies of a supervised trainer.
struct SupervisedDeps {
  std::uint64_t total_steps = 1;
  std::uint32_t sequences_per_step = 1;
  std::uint64_t commit_every = 0;  // steps; 0: only at the end
  /// The time after which a step is committed although its number is not due. 0: none.
  Duration commit_interval{0};
  std::uint64_t eval_every = 0;  // steps, and after the last one; 0: never
  BestOptions best_options;
  /// Held-out sequences; each evaluation scores them all. Null: none.
  std::shared_ptr<const std::vector<engines::TrainSequence>> eval_sequences;
  Duration train_deadline = std::chrono::minutes(60);
  TrainingActor training;
  RecorderActor recorder;
  RunListenerActor listener;
  std::shared_ptr<SequenceReader> reader;
  std::shared_ptr<CommitStore> commits;
  WorkPort* read_port = nullptr;    // also frees weights that are no longer needed
  WorkPort* commit_port = nullptr;  // both ports outlive the trainer
  /// The weights that training starts from. Their version is the step that the run has reached.
  engines::Snapshot weights;
  // State of the commit that the run resumes from.
  std::optional<BestSoFar> best;
  std::uint64_t evaluated_step = 0;
};

/// Spawns a supervised trainer. On any failure it exits with the failure as its exit reason.
[[nodiscard]] SupervisedTrainerActor spawn_supervised_trainer(caf::actor_system& system,
                                                              SupervisedDeps deps);

}  // namespace tidemill::actors
