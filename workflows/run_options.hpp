// SPDX-License-Identifier: Apache-2.0
// The keys that the runs of all workflows have: name, seed, checkpoints, records and device. The
// help texts in run_options.cpp explain the keys.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/schema/schema.hpp"

namespace tidemill::workflows {

struct CheckpointOptions {
  std::int64_t every_steps = 10;
};

struct DeviceOptions {
  std::int32_t threads = 0;       // 0: one for each core the process may use
  std::int64_t memory_bytes = 0;  // 0: what the machine, its control groups and ulimit allow
};

struct RecordOptions {
  std::int64_t samples_bytes = std::int64_t{4} << 30U;
};

struct RunOptions {
  std::optional<std::string> name;  // none: the stem of the file, then stem-2, ...
  std::uint64_t seed = 0;
  CheckpointOptions checkpoint;
  RecordOptions record;
  DeviceOptions device;
};

/// Returns whether `name` is a valid name of a run: 1 to 128 characters of `A-Z a-z 0-9 . _ -`, the
/// first of which is not a dot.
[[nodiscard]] bool is_run_name(std::string_view name);

void describe(Schema<CheckpointOptions>& s);
void describe(Schema<RecordOptions>& s);
void describe(Schema<DeviceOptions>& s);
void describe(Schema<RunOptions>& s);

}  // namespace tidemill::workflows
