// SPDX-License-Identifier: Apache-2.0
#include "workflows/run_options.hpp"

#include <algorithm>

namespace tidemill::workflows {

bool is_run_name(std::string_view name) {
  return !name.empty() && name.size() <= 128 && name.front() != '.' && name.front() != '-' &&
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
       "Maximum size of samples.jsonl; samples that no longer fit are not recorded; 0: none are.")
      .at_least(0)
      .unit("bytes");
}

void describe(Schema<DeviceOptions>& s) {
  s.field("threads", &DeviceOptions::threads,
          "Compute threads; 0: one for each core that CPU affinity and control groups allow.")
      .range(0, 1024);
  s.field("memory_bytes", &DeviceOptions::memory_bytes,
          "Memory that the run may use; 0: what the machine, its control groups and ulimit allow. "
          "A run "
          "that may need more is refused.")
      .at_least(0)
      .unit("bytes");
}

void describe(Schema<RunOptions>& s) {
  s.field(
      "name", &RunOptions::name,
      "The run's directory is runs/NAME. Default: the file name without its suffix, then with -2, "
      "-3, ... appended if that is taken.");
  s.field("seed", &RunOptions::seed, "Seed of all random numbers of the run.").at_least(0);
  s.field("checkpoint", &RunOptions::checkpoint, "When the run saves a commit to resume from.");
  s.field("record", &RunOptions::record, "What the run records.");
  s.field("device", &RunOptions::device, "Threads and memory that the run may use.");
  s.check("name", [](const RunOptions& o) {
    return o.name && !is_run_name(*o.name) ? "must be 1 to 128 letters, digits, dots, dashes or "
                                             "underscores, and not begin with a dot or a dash"
                                           : "";
  });
}

}  // namespace tidemill::workflows
