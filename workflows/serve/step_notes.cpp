// SPDX-License-Identifier: Apache-2.0
#include "workflows/serve/step_notes.hpp"

#include <algorithm>
#include <string>

namespace tidemill::workflows {

void StepNotes::begin(std::uint64_t step, std::uint64_t steps, TimePoint now) {
  is_first_ = step_ == 0;
  step_ = step;
  steps_ = steps;
  begun_ = now;
  noted_ = now;
  progress_->done = 0;
  progress_->total = 0;
}

std::optional<actors::StepNote> StepNotes::note(TimePoint now) {
  if (step_ == 0 || step_ > steps_ || now - noted_ < kNoteInterval) {
    return std::nullopt;
  }
  noted_ = now;
  const std::uint64_t total = progress_->total;
  const std::uint64_t done = std::min<std::uint64_t>(progress_->done, total);
  actors::StepNote note;
  note.message = "Step " + std::to_string(step_) + "/" + std::to_string(steps_) + ": ";
  if (done == 0) {
    note.message += "no sequence trained on yet; an evaluation or rollouts come first";
    return note;
  }
  note.message += std::to_string(done) + " of " + std::to_string(total) + " sequences trained on";
  if (all_is_training_ && is_first_) {
    const double taken = std::chrono::duration<double>(now - begun_).count();
    const double of_step = taken / static_cast<double>(done) * static_cast<double>(total);
    note.seconds_left = of_step * static_cast<double>(steps_ - step_ + 1) - taken;
  }
  return note;
}

}  // namespace tidemill::workflows
