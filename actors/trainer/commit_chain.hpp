// SPDX-License-Identifier: Apache-2.0
// Makes the commits of a trainer, from capturing the parts to writing the files. Both trainers use
// it. A commit takes three calls:
//
//   capture       requests the stream (if there is one), the optimizer and the record files, in
//                 this order; then the trainer continues
//   write         has the port encode the stream, write the commit and free its parts
//   take_written  returns the result, once the trainer has received `atom::worked`
//
// A commit may be captured only after the previous one has been written. `RunPhases` ensures this.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <caf/all.hpp>

#include "actors/commit/run_commit.hpp"
#include "actors/device/handles.hpp"
#include "actors/errors.hpp"
#include "actors/recorder/handles.hpp"
#include "actors/stream/handles.hpp"
#include "actors/stream/stream_image.hpp"
#include "actors/work/work_port.hpp"
#include "base/clock.hpp"

namespace tidemill::actors {

/// The actors that hold the parts of a commit, and where the commit goes.
struct CommitRoute {
  StreamActor stream;  // null: the workflow has no stream
  TrainingActor training;
  RecorderActor recorder;
  std::shared_ptr<CommitStore> store;
  WorkPort* port = nullptr;  // outlives the trainer
};

/// Makes the commits of one trainer, whose state owns this object.
///
/// `self` is that trainer. If another actor fails or does not reply in time, the chain ends the
/// trainer with an error that names the part of the commit.
/// Threads: only the trainer calls it.
class CommitChain {
public:
  CommitChain() = default;
  /// A commit is overdue once `interval` has passed since the last one, or since `started`; 0:
  /// never.
  CommitChain(CommitRoute route, Duration interval, TimePoint started)
      : route_(std::move(route)), interval_(interval), captured_at_(started) {}

  [[nodiscard]] bool is_overdue(TimePoint now) const noexcept {
    return interval_ > Duration{0} && now - captured_at_ >= interval_;
  }

  /// Begins a commit. `begun` holds the trainer's own parts; the chain requests the others from the
  /// actors that hold them. Calls `on_captured()` when all parts have arrived.
  template <class Self, class OnCaptured>
  void capture(Self self, RunCommit begun, OnCaptured on_captured) {
    captured_ = std::make_shared<Pending>();
    captured_->commit = std::move(begun);
    captured_at_ = self->clock().now();
    if (route_.stream) {
      capture_stream(self, on_captured);
    } else {
      capture_optimizer(self, on_captured);
    }
  }

  /// Has the port write the captured commit, and then send `atom::worked` to the trainer.
  /// `evaluated_step` is the step of the last recorded evaluation; 0: none.
  template <class Self>
  void write(Self self, std::uint64_t evaluated_step) {
    captured_->commit.evaluated_step = evaluated_step;
    written_ = std::exchange(captured_, nullptr);
    route_.port->run(
        [work = written_, store = route_.store] {
          if (work->rows.has_value()) {
            work->commit.stream = encode_stream_image(*std::exchange(work->rows, std::nullopt));
          }
          work->status = store->save(work->commit);
          work->commit = {};  // frees the captured weights here, not in a message handler
          return Duration{0};
        },
        caf::actor_cast<caf::strong_actor_ptr>(self), caf::make_message(atom::worked_v));
  }

  /// Returns the result of writing the commit of step `step`: ok if it is on disk. Call this once
  /// after each `write`, when the trainer has received `atom::worked`.
  /// Errors: those of `CommitStore::save`, naming the step.
  [[nodiscard]] Status take_written(std::uint64_t step) {
    return std::exchange(written_, nullptr)
        ->status.with_context("commit of step " + std::to_string(step));
  }

private:
  static constexpr Duration kPartDeadline = std::chrono::minutes(2);

  // A commit on its way to the store; shared with the port.
  struct Pending {
    RunCommit commit;
    std::optional<StreamCapture> rows;  // encoded at the port
    Status status;
  };

  template <class Self>
  static auto or_fail(Self self, const char* part) {
    return [self, part](const caf::error& error) {
      self->quit(to_caf_error(from_caf_error(error).with_context(part)));
    };
  }

  template <class Self, class OnCaptured>
  void capture_stream(Self self, OnCaptured on_captured) {
    self->request(route_.stream, kPartDeadline, atom::capture_v)
        .then(
            [this, self, on_captured](StreamCapture& rows) {
              captured_->rows = std::move(rows);
              capture_optimizer(self, on_captured);
            },
            or_fail(self, "committing: stream"));
  }

  template <class Self, class OnCaptured>
  void capture_optimizer(Self self, OnCaptured on_captured) {
    self->request(route_.training, kPartDeadline, atom::capture_v)
        .then(
            [this, self, on_captured](OptimizerState& optimizer) {
              captured_->commit.optimizer = std::move(optimizer.tensors);
              capture_records(self, on_captured);
            },
            or_fail(self, "committing: optimizer"));
  }

  template <class Self, class OnCaptured>
  void capture_records(Self self, OnCaptured on_captured) {
    self->request(route_.recorder, kPartDeadline, atom::capture_v)
        .then(
            [this, on_captured](const RecordMarks& marks) {
              captured_->commit.records = marks;
              on_captured();
            },
            or_fail(self, "committing: record files"));
  }

  CommitRoute route_;
  Duration interval_{0};
  TimePoint captured_at_;
  std::shared_ptr<Pending> captured_;  // being captured, or captured and not yet at the port
  std::shared_ptr<Pending> written_;   // at the port
};

}  // namespace tidemill::actors
