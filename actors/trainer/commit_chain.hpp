// SPDX-License-Identifier: Apache-2.0
// How a trainer makes a commit, from the first captured part to the file. Both trainers use it.
//
//   capture:  stream (if there is one) -> optimizer -> record files; the trainer then goes on
//   write:    the port encodes the stream, writes the commit and frees its parts
//   take_written:  the trainer has received `atom::worked` and reads the result
//
// A commit may be captured only after the one before it has been written; `RunPhases` sees to that.
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

namespace tidemill::actors {

/// The actors that hold the parts of a commit, and where the commit goes.
struct CommitRoute {
  StreamActor stream;  // null: the workflow has no stream
  DeviceActor device;
  RecorderActor recorder;
  std::shared_ptr<CommitStore> store;
  WorkPort* port = nullptr;  // outlives the trainer
};

/// Makes the commits of one trainer, which owns it in its state.
///
/// `self` is that trainer. If another actor fails or does not reply in time, the chain ends the
/// trainer with an error that names the part of the commit.
/// Threads: called by the trainer.
class CommitChain {
public:
  CommitChain() = default;
  explicit CommitChain(CommitRoute route) : route_(std::move(route)) {}

  /// Begins a commit with the parts that the trainer holds, and requests the parts that other
  /// actors hold. Calls `on_captured()` once all parts have arrived.
  template <class Self, class OnCaptured>
  void capture(Self self, RunCommit begun, OnCaptured on_captured) {
    captured_ = std::make_shared<Pending>();
    captured_->commit = std::move(begun);
    if (route_.stream) {
      capture_stream(self, on_captured);
    } else {
      capture_optimizer(self, on_captured);
    }
  }

  /// Has the port write the captured commit, and then send `atom::worked` to the trainer.
  /// `evaluated_step` is the step of the last recorded evaluation.
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

  /// Returns whether the commit of step `step` is on disk. Call it once after each `write`, when
  /// the trainer has received `atom::worked`.
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
    self->request(route_.device, kPartDeadline, atom::capture_v)
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
  std::shared_ptr<Pending> captured_;  // being captured, or captured and not yet at the port
  std::shared_ptr<Pending> written_;   // at the port
};

}  // namespace tidemill::actors
