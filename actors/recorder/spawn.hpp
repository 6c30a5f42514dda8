// SPDX-License-Identifier: Apache-2.0
// Spawns the recorder.
#pragma once

#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <caf/fwd.hpp>

#include "actors/recorder/handles.hpp"
#include "actors/work/work_port.hpp"
#include "base/files/held_directory.hpp"
#include "base/result.hpp"
#include "storage/run_files/record_marks.hpp"

namespace tidemill::actors {

/// The record files of a run.
///
/// Threads: one call at a time. Calls block, so actors make them through a `WorkPort`.
class RecordFiles {
public:
  RecordFiles() = default;
  RecordFiles(const RecordFiles&) = delete;
  RecordFiles& operator=(const RecordFiles&) = delete;
  virtual ~RecordFiles() = default;

  /// Appends whole lines to `metrics.jsonl` and `samples.jsonl`, and the metrics also to the event
  /// file. Returns the sizes and digests of the two JSONL files.
  /// Errors: those of the file system; `kCorruptData` if a JSONL file has been removed, replaced or
  /// changed since the last call. A partially written append is removed from the file again.
  [[nodiscard]] virtual Result<RecordMarks> append(const std::string& metrics,
                                                   const std::string& samples) = 0;
};

/// The folder of record files.
struct RecordFolder {
  std::filesystem::path path;
  std::shared_ptr<const HeldDirectory> held = nullptr;  // null: the one that `path` names
  /// What has been read of the files already; may be null. It is used for these marks and emptied.
  std::shared_ptr<storage::CheckedRecords> checked = nullptr;
};

/// Opens the record files in `folder` and truncates them to `marks`. A sample is left out if
/// `samples.jsonl` would exceed `max_samples_bytes` with it.
/// Errors: those of the file system; `kInvalidArgument` if a file is not a regular one;
/// `kCorruptData` if a file does not hold what its mark says.
[[nodiscard]] Result<std::unique_ptr<RecordFiles>> open_record_files(
    const RecordFolder& folder, const RecordMarks& marks,
    std::uint64_t max_samples_bytes = std::numeric_limits<std::uint64_t>::max());

/// Receives every record when it arrives, before it is written, for example to show a table. The
/// recorder calls it from its message handler.
using RecordObserver = std::function<void(const StepRecord&)>;

/// Returns the text of token ids. The recorder calls it at its port.
using DecodeResponse = std::function<std::string(const std::vector<std::int32_t>&)>;

/// Dependencies of a recorder.
struct RecorderDeps {
  std::shared_ptr<RecordFiles> files;
  RecordMarks marks;         // the sizes of the files at the start
  RecordObserver observer;   // may be empty
  DecodeResponse decode;     // may be empty if no record has samples
  WorkPort* port = nullptr;  // outlives the recorder
};

/// Spawns a recorder.
[[nodiscard]] RecorderActor spawn_recorder(caf::actor_system& system, RecorderDeps deps);

}  // namespace tidemill::actors
