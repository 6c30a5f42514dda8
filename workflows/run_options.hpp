// SPDX-License-Identifier: Apache-2.0
// What every run has, whatever its workflow: a name, a seed, checkpoints, a device. Meanings:
// run_options.cpp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/schema.hpp"

namespace tidemill::workflows {

struct CheckpointOptions {
  std::int64_t every_steps = 10;
};

struct DeviceOptions {
  std::int32_t threads = 0;       // 0: all cores the process may use
  std::int64_t memory_bytes = 0;  // 0: what the machine or its cgroup allows
};

struct RecordOptions {
  std::int64_t samples_bytes = std::int64_t{4} << 30U;
};

struct RunOptions {
  std::optional<std::string> name;  // none: the file's stem, then stem-2, ...
  std::uint64_t seed = 0;
  CheckpointOptions checkpoint;
  RecordOptions record;
  DeviceOptions device;
};

/// Returns whether `name` may be the name of a run: 1 to 128 of `A-Z a-z 0-9 . _ -`, no dot first.
[[nodiscard]] bool is_run_name(std::string_view name);

void describe(Schema<CheckpointOptions>& s);
void describe(Schema<RecordOptions>& s);
void describe(Schema<DeviceOptions>& s);
void describe(Schema<RunOptions>& s);

}  // namespace tidemill::workflows
