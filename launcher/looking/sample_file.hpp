// SPDX-License-Identifier: Apache-2.0
// `samples.jsonl` of a run: finding the samples of a step, and reading one. The file may be larger
// than memory, and may be growing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/file.hpp"
#include "base/result.hpp"

namespace tidemill::launcher {

/// Where a sample stands, and what samples are chosen by.
struct SamplePlace {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;  // with the newline
  std::int64_t step = 0;
  std::int64_t group = 0;
  double reward = 0.0;
};

/// Which samples: of a step (the last one without), of a group (all without).
struct SampleChoice {
  std::optional<std::int64_t> step;
  std::optional<std::int64_t> group;
};

/// One sample, as it was recorded.
struct RecordedSample {
  std::int64_t step = 0;
  std::int64_t sample = 0;
  std::int64_t group = 0;
  std::string prompt;
  std::string response;
  std::string answer;
  std::string finish_reason;
  double reward = 0.0;
  double advantage = 0.0;
  std::vector<std::int32_t> response_ids;
  std::vector<float> behavior_logprobs;  // as many as ids
};

/// Finds samples, in the file's order.
/// Errors: `kNotFound` saying which steps or groups there are; `kCorruptData` naming the byte.
[[nodiscard]] Result<std::vector<SamplePlace>> find_samples(const std::filesystem::path& path,
                                                            const SampleChoice& choice);

/// Returns the line at `place`, without its newline. Errors: those of the file system.
[[nodiscard]] Result<std::string> read_sample_line(const ReadableFile& file,
                                                   const SamplePlace& place);

/// Parses a line. Errors: `kCorruptData`, naming the field.
[[nodiscard]] Result<RecordedSample> parse_sample(std::string_view line);

}  // namespace tidemill::launcher
