// SPDX-License-Identifier: Apache-2.0
// Runs one training request as a sequence of engine iterations. Private to the device.
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "actors/device/messages.hpp"
#include "actors/device/spawn.hpp"
#include "base/result.hpp"

namespace tidemill::actors {

/// Drives a `TrainingJob` through a `TrainRequest`.
///
/// The probe is scored first. A scoring pass over all sequences follows if the job needs proximal
/// log-probabilities. Then each minibatch of each epoch is stepped and updated, and finally the
/// weights are committed. A job that only scores ends after its scoring pass.
/// After each call of `advance`, the engine has iterations to run, or the job is `finished`.
/// Threads: one call at a time; a call may take as long as an iteration.
class TrainRun {
public:
  /// Borrows `engine` and keeps `job`.
  TrainRun(engines::TrainingJob& engine, LossFactory make_loss, TrainRequest job);
  TrainRun(const TrainRun&) = delete;
  TrainRun& operator=(const TrainRun&) = delete;
  /// Abandons the engine's open batch, which refers to the loss of this run.
  ~TrainRun();

  /// Does the work between iterations, until the engine has iterations to run or the job is done.
  /// Errors: those of the engine and of the loss. The job is then over, and its batch abandoned.
  [[nodiscard]] Status advance();

  [[nodiscard]] bool finished() const noexcept { return finished_; }

  /// Returns the outcome. Requires `finished()`.
  [[nodiscard]] TrainOutcome take_outcome() { return std::move(outcome_); }

private:
  [[nodiscard]] Status take_stages();
  [[nodiscard]] Status probe();
  [[nodiscard]] Status begin_scoring();
  [[nodiscard]] Status end_scoring();
  [[nodiscard]] Status begin_minibatch();
  [[nodiscard]] Status end_minibatch();
  [[nodiscard]] Status compare_on_policy();
  void add_score(std::span<const float> logprobs, const engines::TrainSequence& sequence);
  void compare(std::span<const float> trained, const engines::TrainSequence& sequence);

  enum class Stage { kStart, kScoring, kTraining, kStepping, kSaving };

  engines::TrainingJob& engine_;
  LossFactory make_loss_;
  TrainRequest job_;
  TrainOutcome outcome_;
  std::unique_ptr<engines::TokenLoss> loss_;
  Stage stage_ = Stage::kStart;
  std::uint32_t epoch_ = 0;
  std::size_t minibatch_ = 0;
  bool finished_ = false;
};

}  // namespace tidemill::actors
