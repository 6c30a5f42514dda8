// SPDX-License-Identifier: Apache-2.0
// Runs one training request as work of a training job. Private to the device.
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
/// The probe is scored first. If the request needs proximal log-probabilities or only scores, a
/// forward pass over all sequences follows, and a request that only scores then ends. Each
/// minibatch of each epoch then runs `forward_backward` and `optim_step`; a minibatch without
/// sequences is skipped. Finally, `save` makes the new snapshot. After each successful call of
/// `advance`, the job has work, or the request is `finished`.
/// Threads: one call at a time. The first call takes as long as scoring the probe, if there is one.
class TrainRun {
public:
  /// Borrows `job` and keeps `request`.
  TrainRun(engines::TrainingJob& job, LossFactory make_loss, TrainRequest request);
  TrainRun(const TrainRun&) = delete;
  TrainRun& operator=(const TrainRun&) = delete;
  /// Cancels the work of the job, which may refer to the loss of this run.
  ~TrainRun();

  /// Reads the results of finished work and starts the next work, until the job has work or the
  /// request is finished.
  /// Errors: those of the job and of the loss. The work of the job is then cancelled, and `advance`
  /// must not be called again.
  [[nodiscard]] Status advance();

  /// Returns whether the request has been processed.
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

  engines::TrainingJob& job_;  // borrowed
  LossFactory make_loss_;
  TrainRequest request_;
  TrainOutcome outcome_;
  std::unique_ptr<engines::TokenLoss> loss_;
  Stage stage_ = Stage::kStart;
  std::uint32_t epoch_ = 0;
  std::size_t minibatch_ = 0;
  bool finished_ = false;
};

}  // namespace tidemill::actors
