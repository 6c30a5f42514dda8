// SPDX-License-Identifier: Apache-2.0
// Starting the recorder.
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <string>

#include <caf/fwd.hpp>

#include "actors/recorder/handles.hpp"
#include "actors/work/work_port.hpp"
#include "base/result.hpp"

namespace tidemill::actors {

/// Where a run's record lines go.
///
/// Threads: one call at a time. Calls block: they are made through a `WorkPort`.
class RecordFiles {
public:
  RecordFiles() = default;
  RecordFiles(const RecordFiles&) = delete;
  RecordFiles& operator=(const RecordFiles&) = delete;
  virtual ~RecordFiles() = default;

  /// Appends whole lines to `metrics.jsonl`, with what they say to the event file beside it, and to
  /// `samples.jsonl`; returns the sizes of the two.
  /// Errors: those of the file system; a part of a line that was written is cut off again.
  [[nodiscard]] virtual Result<RecordMarks> append(const std::string& metrics,
                                                   const std::string& samples) = 0;
};

/// Opens the record files in `directory`, cut back to `marks`. A sample with which `samples.jsonl`
/// would hold more than `most_samples_bytes` is left out.
/// Errors: those of the file system, and `kCorruptData` when a file is shorter than its mark.
[[nodiscard]] Result<std::unique_ptr<RecordFiles>> open_record_files(
    const std::string& directory, const RecordMarks& marks,
    std::uint64_t most_samples_bytes = std::numeric_limits<std::uint64_t>::max());

/// Sees every record as it is taken in, e.g. to show a table. Called on the recorder's actor.
using RecordObserver = std::function<void(const StepRecord&)>;

/// What a recorder is made of.
struct RecorderDeps {
  std::shared_ptr<RecordFiles> files;
  RecordMarks marks;         // the files' sizes at the start
  RecordObserver observer;   // may be empty
  WorkPort* port = nullptr;  // outlives the recorder
};

/// Spawns a recorder.
[[nodiscard]] RecorderActor spawn_recorder(caf::actor_system& system, RecorderDeps deps);

}  // namespace tidemill::actors
