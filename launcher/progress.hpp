// SPDX-License-Identifier: Apache-2.0
// What a run shows while it runs: a line for each step, or a JSON object.
#pragma once

#include <cstdint>
#include <iosfwd>

#include "actors/recorder/messages.hpp"
#include "base/clock.hpp"
#include "launcher/command.hpp"

namespace tidemill::launcher {

/// Prints a table as records come in: at most a few lines a second, every evaluation.
///
/// Threads: one call at a time.
class Progress {
public:
  /// Borrows all.
  Progress(std::ostream& out, OutputForm form, const Clock& clock)
      : out_(out), form_(form), clock_(clock) {}

  void show(const actors::StepRecord& record);

private:
  void show_rollouts(const actors::StepRecord& record);
  void show_supervised(const actors::StepRecord& record);

  std::ostream& out_;
  OutputForm form_;
  const Clock& clock_;
  TimePoint shown_{};
  bool has_head_ = false;
  double accuracy_ = -1.0;  // of the last evaluation
};

}  // namespace tidemill::launcher
