// SPDX-License-Identifier: Apache-2.0
// Private to workflows/serve. Says how far a job is within a step that takes long.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "actors/tuning/tuning_run.hpp"
#include "base/clock.hpp"
#include "workflows/counted_loss.hpp"

namespace tidemill::workflows {

/// The time between two notes about a step, and from the beginning of a step to the first note.
inline constexpr Duration kNoteInterval = std::chrono::seconds(30);

/// Makes notes about the step that a run is in.
/// Threads: one call at a time.
class StepNotes {
public:
  /// `progress` is how much of the current step is done; `begin` resets it. If `all_is_training`, a
  /// step does nothing else that takes long, so notes about the first step of a run estimate the
  /// time that is left.
  StepNotes(std::shared_ptr<MinibatchProgress> progress, bool all_is_training)
      : progress_(std::move(progress)), all_is_training_(all_is_training) {}

  /// Starts step `step`, counted from 1, of `steps` at `now`. Steps after `steps` get no notes.
  void begin(std::uint64_t step, std::uint64_t steps, TimePoint now);

  /// Returns a note if a step is in progress and at least `kNoteInterval` has passed since the step
  /// began and since the last note.
  [[nodiscard]] std::optional<actors::StepNote> note(TimePoint now);

private:
  std::shared_ptr<MinibatchProgress> progress_;
  bool all_is_training_;
  bool is_first_ = true;    // no step of this run has ended
  std::uint64_t step_ = 0;  // 0: none has begun
  std::uint64_t steps_ = 0;
  TimePoint begun_;
  TimePoint noted_;
};

}  // namespace tidemill::workflows
