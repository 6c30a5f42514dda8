// SPDX-License-Identifier: Apache-2.0
// The lines of `samples.jsonl`: one for each sample that a run has trained on.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace tidemill::storage {

/// The name of the file in a run directory.
inline constexpr const char* kSamplesFile = "samples.jsonl";

/// How many consecutive tokens the weights of one step sampled.
struct SampledSpan {
  std::uint64_t step = 0;
  std::uint64_t tokens = 0;
  friend bool operator==(const SampledSpan&, const SampledSpan&) = default;
};

/// One trained sample.
struct SampleLine {
  std::uint64_t step = 0;  // the step that trained it
  std::uint64_t sample = 0;
  std::uint64_t group = 0;
  std::string prompt;
  std::string response;
  std::string reference_answer;
  double reward = 0.0;
  std::map<std::string, double> rewards;  // terms of a sum of rewards, before their weights
  float advantage = 0.0F;
  std::string finish_reason;
  std::vector<SampledSpan> versions;
  std::vector<std::int32_t> response_ids;
  std::vector<float> behavior_logprobs;  // one for each id
  friend bool operator==(const SampleLine&, const SampleLine&) = default;
};

/// Returns `line` as a JSON object with a final newline. Its first member is `step`. 32-bit numbers
/// are written with the fewest digits that read back as the same value. `rewards` is left out if it
/// is empty. A number that is not finite becomes null.
[[nodiscard]] std::string write_sample_line(const SampleLine& line);

/// Parses a line, with or without its newline. A log-probability that is null becomes NaN.
/// Errors: `kCorruptData` naming the field, or the byte of invalid JSON.
[[nodiscard]] Result<SampleLine> parse_sample_line(std::string_view text);

/// Returns the step at the start of a line without parsing the rest, or nothing if the line does
/// not begin with a step.
[[nodiscard]] std::optional<std::uint64_t> step_of_sample_line(std::string_view text);

}  // namespace tidemill::storage
