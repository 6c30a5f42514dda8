// SPDX-License-Identifier: Apache-2.0
// The keys that the runs of all workflows have: name, seed, checkpoints, records and device. The
// help texts in run_options.cpp explain the keys.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/schema/schema.hpp"

namespace tidemill::workflows {

/// When a run commits.
struct CheckpointOptions {
  std::int64_t every_steps = 10;   // 0: only at the end
  std::int64_t every_seconds = 0;  // 0: only as `every_steps` says
};

/// What a run may use of the machine.
struct DeviceOptions {
  std::int32_t threads = 0;       // 0: one for each core the process may use
  std::int64_t memory_bytes = 0;  // 0: as much as machine, control groups and ulimit allow
};

/// How much a run records.
struct RecordOptions {
  std::int64_t samples_bytes = std::int64_t{4} << 30U;
};

/// The options that the runs of all workflows have.
struct RunOptions {
  std::optional<std::string> name;  // absent: the stem of the file, or stem-2, ... if that exists
  std::uint64_t seed = 0;
  CheckpointOptions checkpoint;
  RecordOptions record;
  DeviceOptions device;
};

/// Returns whether `name` is a valid name of a run: 1 to 128 characters of `A-Z a-z 0-9 . _ -`, the
/// first of which is neither a dot nor a dash.
[[nodiscard]] bool is_run_name(std::string_view name);

void describe(Schema<CheckpointOptions>& s);
void describe(Schema<RecordOptions>& s);
void describe(Schema<DeviceOptions>& s);
void describe(Schema<RunOptions>& s);

}  // namespace tidemill::workflows
