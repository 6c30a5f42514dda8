// SPDX-License-Identifier: Apache-2.0
// Shows the progress of a run: a table with a row for each step, or a JSON object for each record.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <utility>

#include "actors/recorder/messages.hpp"
#include "base/clock.hpp"
#include "launcher/command.hpp"

namespace tidemill::launcher {

/// Prints a table as records arrive: at most four rows a second, and always that of the last step.
/// A line about the processes of the run is in front of a row if it has changed since the one
/// before.
///
/// Threads: one call at a time.
class Progress {
public:
  /// Borrows `out` and `clock`.
  Progress(std::ostream& out, OutputForm form, const Clock& clock)
      : out_(out), form_(form), clock_(clock) {}

  /// Sets what returns the line about processes. Without it, there is no such line.
  void set_processes(std::function<std::string()> summary) { processes_ = std::move(summary); }

  /// Sets the number of steps of the run. Without it, the table shows no remaining time.
  void begin(std::uint64_t total_steps);
  /// Shows a step or an evaluation.
  void show(const actors::StepRecord& record);
  /// Shows the last step if it has not been shown yet, and the loss of a supervised run's
  /// evaluation that followed the last row.
  void end();

private:
  void show_json(const actors::StepRecord& record);
  void show_row(const actors::StepRecord& record);
  void show_processes();
  void show_rollouts(const actors::StepRecord& record);
  void show_supervised(const actors::StepRecord& record);
  [[nodiscard]] std::string time_left(std::uint64_t step) const;

  std::ostream& out_;
  OutputForm form_;
  const Clock& clock_;
  std::function<std::string()> processes_;
  std::string shown_processes_;
  std::uint64_t total_steps_ = 0;
  std::optional<std::uint64_t> first_step_;    // the first step that was shown
  TimePoint first_shown_{};                    // when it was shown
  TimePoint shown_{};                          // when the last row was shown
  std::optional<actors::StepRecord> skipped_;  // the last step, if it has not been shown
  bool has_head_ = false;
  std::optional<double> eval_reward_;  // mean of the last evaluation; none if it scored no response
  std::optional<double> eval_loss_;    // of the last evaluation of a supervised run
  std::optional<std::uint64_t> unshown_eval_;  // step of that evaluation, if no row has its loss
};

/// Returns a duration as text: "43s", "1m05s", "2h07m".
[[nodiscard]] std::string duration_text(Duration duration);

}  // namespace tidemill::launcher
