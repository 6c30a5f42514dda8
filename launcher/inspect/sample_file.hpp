// SPDX-License-Identifier: Apache-2.0
// Finds and reads samples in `samples.jsonl` of a run. The file may be larger than memory, and it
// may be growing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/files/file.hpp"
#include "base/result.hpp"

namespace tidemill::launcher {

/// Where the line of a sample is, and the values by which samples are selected and sorted.
struct SampleLocation {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;  // including the newline
  std::int64_t step = 0;
  std::int64_t group = 0;
  double reward = 0.0;
};

/// Which samples to find: those of a step (none: the last one), and of a group (none: all groups).
struct SampleChoice {
  std::optional<std::int64_t> step;
  std::optional<std::int64_t> group;
};

/// Finds samples and returns them in the order of the file.
/// Errors: `kNotFound` with the existing steps or groups; `kCorruptData` naming the byte.
[[nodiscard]] Result<std::vector<SampleLocation>> find_samples(const std::filesystem::path& path,
                                                               const SampleChoice& choice);

/// Returns the line at `location`, without its newline. Errors: those of the file system.
[[nodiscard]] Result<std::string> read_sample_line(const ReadableFile& file,
                                                   const SampleLocation& location);

}  // namespace tidemill::launcher
