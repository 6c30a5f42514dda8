// SPDX-License-Identifier: Apache-2.0
#include "workflows/run_options.hpp"

#include <algorithm>

namespace tidemill::workflows {

bool is_run_name(std::string_view name) {
  return !name.empty() && name.size() <= 128 && name.front() != '.' &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '.' || c == '_' || c == '-';
         });
}

void describe(Schema<CheckpointOptions>& s) {
  s.field("every_steps", &CheckpointOptions::every_steps,
          "Steps between commits; 0: only at the end.")
      .range(0, 1e9);
}

void describe(Schema<RecordOptions>& s) {
  s.field(
       "samples_bytes", &RecordOptions::samples_bytes,
       "Most bytes of samples.jsonl; samples for which it has no room are not kept; 0: none are.")
      .at_least(0)
      .unit("bytes");
}

void describe(Schema<DeviceOptions>& s) {
  s.field("threads", &DeviceOptions::threads,
          "Threads that compute; 0: one for each core that affinity and control groups leave.")
      .range(0, 1024);
  s.field("memory_bytes", &DeviceOptions::memory_bytes,
          "Memory the run may take; 0: what the machine allows.")
      .at_least(0)
      .unit("bytes");
}

void describe(Schema<RunOptions>& s) {
  s.field("name", &RunOptions::name,
          "The run's directory is runs/NAME; without it the file's stem, then stem-2, ...");
  s.field("seed", &RunOptions::seed, "The same seed gives the same run.").at_least(0);
  s.field("checkpoint", &RunOptions::checkpoint, "Commits that a run can go on from.");
  s.field("record", &RunOptions::record, "What a run writes down.");
  s.field("device", &RunOptions::device, "Where the run computes.");
  s.check("name", [](const RunOptions& o) {
    return o.name && !is_run_name(*o.name)
               ? "needs 1 to 128 letters, digits, dots, dashes or underscores, no dot first"
               : "";
  });
}

}  // namespace tidemill::workflows
