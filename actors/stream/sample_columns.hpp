// SPDX-License-Identifier: Apache-2.0
// The columns of the stream "samples", the tasks that fill them, and their encoding in buffers.
//
// Legend: P tokens of the prompt, R tokens of the response, N parts of a sum of rewards.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "actors/stream/messages.hpp"
#include "base/result.hpp"
#include "engines/rollout_engine.hpp"

namespace tidemill::actors {

/// The columns, in the order in which the stream declares them.
enum class SampleColumn : std::uint32_t {
  kPromptIds,         // int32 (P)
  kPrompt,            // UTF-8: the prompt as text
  kReferenceAnswer,   // UTF-8: the reference answer; empty if the data row has none
  kFields,            // UTF-8: the data row as a JSON object
  kResponseIds,       // int32 (R)
  kBehaviorLogprobs,  // float (R)
  kVersions,          // (incarnation, step, tokens) uint64 triples
  kFinish,            // one byte: FinishReason
  kReward,            // double (1 + N): the reward, then the rewards of its N parts
  kAdvantage,         // one float
};

/// The names of the columns, in the order of `SampleColumn`.
inline constexpr std::string_view kSampleColumnNames[] = {
    "prompt_ids",        "prompt",   "answer", "fields", "response_ids",
    "behavior_logprobs", "versions", "finish", "reward", "advantage"};

/// The tasks, in the order in which the stream declares them.
enum class SampleTask : std::uint32_t { kRollout, kReward, kAdvantage, kTrain };

/// The names of the tasks, in the order of `SampleTask`.
inline constexpr std::string_view kSampleTaskNames[] = {"rollout", "reward", "advantage", "train"};

/// Returns the stream's id of a task.
[[nodiscard]] constexpr storage::TaskId task_id(SampleTask task) {
  return {static_cast<std::uint32_t>(task)};
}

/// Returns a cell of `column` that holds `values`.
template <class T>
[[nodiscard]] storage::ColumnValue make_cell(SampleColumn column, std::vector<T> values) {
  constexpr DType kType = std::is_same_v<T, float>          ? DType::kF32
                          : std::is_same_v<T, std::int32_t> ? DType::kI32
                                                            : DType::kU8;
  return {{static_cast<std::uint32_t>(column)}, Buffer::adopt(std::move(values), kType)};
}

/// Returns a cell of `column` that holds `text`.
[[nodiscard]] storage::ColumnValue make_text_cell(SampleColumn column, std::string_view text);
/// Returns a cell of `kVersions` that holds `versions`.
[[nodiscard]] storage::ColumnValue make_versions_cell(
    std::span<const engines::VersionSpan> versions);

/// Returns the cell of `column`.
/// Errors: `kInternal` naming row and column if the row lacks it, which means that the inputs of a
/// task are declared wrongly.
[[nodiscard]] Result<Buffer> find_cell(const storage::LeasedRow& row, SampleColumn column);
/// Returns the text of a cell.
[[nodiscard]] std::string cell_text(const Buffer& cell);
/// Returns the spans of a `kVersions` cell. Their versions are of line 0.
[[nodiscard]] std::vector<engines::VersionSpan> cell_versions(const Buffer& cell);

/// Returns the values of `column`.
/// Errors: those of `find_cell`.
template <class T>
[[nodiscard]] Result<std::vector<T>> read_cell(const storage::LeasedRow& row, SampleColumn column) {
  TIDEMILL_ASSIGN_OR_RETURN(const Buffer cell, find_cell(row, column));
  const auto values = cell.as<T>();
  return std::vector<T>(values.begin(), values.end());
}

}  // namespace tidemill::actors
