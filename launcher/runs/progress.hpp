// SPDX-License-Identifier: Apache-2.0
// What a run shows while it runs: a line for each step, or a JSON object.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>

#include "actors/recorder/messages.hpp"
#include "base/clock.hpp"
#include "launcher/command.hpp"

namespace tidemill::launcher {

/// Prints a table as records come in: a few lines a second at most, and the last step's always.
///
/// Threads: one call at a time.
class Progress {
public:
  /// Borrows all.
  Progress(std::ostream& out, OutputForm form, const Clock& clock)
      : out_(out), form_(form), clock_(clock) {}

  /// Tells after how many steps the run is over; without it no time left is shown.
  void begin(std::uint64_t total_steps);
  void show(const actors::StepRecord& record);
  /// Shows the last step if it was passed over.
  void end();

private:
  void show_json(const actors::StepRecord& record);
  void show_row(const actors::StepRecord& record);
  void show_rollouts(const actors::StepRecord& record);
  void show_supervised(const actors::StepRecord& record);
  [[nodiscard]] std::string time_left(std::uint64_t step) const;

  std::ostream& out_;
  OutputForm form_;
  const Clock& clock_;
  std::uint64_t total_steps_ = 0;
  std::optional<std::uint64_t> first_step_;  // the first that was shown, and when
  TimePoint first_shown_{};
  TimePoint shown_{};
  std::optional<actors::StepRecord> passed_over_;
  bool has_head_ = false;
  double accuracy_ = -1.0;  // of the last evaluation; below 0: none, or nothing could be scored
  std::optional<double> eval_loss_;  // of the last evaluation of a supervised run
};

/// Returns a duration as people read it: "43s", "1m05s", "2h07m".
[[nodiscard]] std::string readable(Duration duration);

}  // namespace tidemill::launcher
