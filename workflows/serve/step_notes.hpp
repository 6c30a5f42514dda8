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

/// The time between two notes about a step, and from its begin to the first one.
inline constexpr Duration kNoteInterval = std::chrono::seconds(30);

/// Makes notes about the step that a run is in.
/// Threads: one call at a time.
class StepNotes {
public:
  /// `share` is how far the step is. If `all_is_training`, a step does nothing else that takes
  /// long, so notes about the first one estimate when the job ends.
  StepNotes(std::shared_ptr<MinibatchShare> share, bool all_is_training)
      : share_(std::move(share)), all_is_training_(all_is_training) {}

  /// A step of `steps` begins at `now`. Its number is `step`, from 1 on. There are no notes after
  /// the last step.
  void begin(std::uint64_t step, std::uint64_t steps, TimePoint now);

  /// Returns a note, unless there was a note or a step began less than `kNoteInterval` ago.
  [[nodiscard]] std::optional<actors::StepNote> note(TimePoint now);

private:
  std::shared_ptr<MinibatchShare> share_;
  bool all_is_training_;
  bool is_first_ = true;    // no step of this run has ended
  std::uint64_t step_ = 0;  // 0: none has begun
  std::uint64_t steps_ = 0;
  TimePoint begun_;
  TimePoint noted_;
};

}  // namespace tidemill::workflows
