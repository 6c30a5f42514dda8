// SPDX-License-Identifier: Apache-2.0
// The columns of the stream "samples", the tasks that fill them, and their encoding in buffers.
//
// Legend: P tokens of the prompt, R tokens of the response, N parts of a sum of rewards, S tokens
// of a response generated so far.
//
// The columns from `kResponseMask` on are optional: no task needs them, and the workflows of this
// program write none of them. The trainer uses the mask, the token advantages and the reference
// log-probabilities of the rows that have them.
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

/// The columns, in the order in which the stream declares them. New columns go to the end, so that
/// the stream images of earlier programs can still be restored.
enum class SampleColumn : std::uint32_t {
  kPromptIds,          // int32 (P)
  kPrompt,             // UTF-8: the prompt as text
  kReferenceAnswer,    // UTF-8: the reference answer; empty if the data row has none
  kFields,             // UTF-8: the data row as a JSON object
  kResponseIds,        // int32 (R)
  kBehaviorLogprobs,   // float (R)
  kVersions,           // (incarnation, step, tokens) uint64 triples
  kFinish,             // one byte: FinishReason
  kReward,             // double (1 + N): the reward, then the rewards of its N parts
  kAdvantage,          // one float
  kResponseMask,       // uint8 (R): 1 where the token is a target, by the rollout task
  kReferenceLogprobs,  // float (R), by the rollout task
  kValues,             // float (R): of a value function, by the rollout task
  kTokenRewards,       // float (R), by the reward task
  kTokenAdvantages,    // float (R), by the advantage task; the trainer uses them in place of
                       // `kAdvantage`
  kPartialIds,         // int32 (S): progress of the rollout task
  kPartialLogprobs,    // float (S): their behavior log-probabilities
  kPartialVersions,    // as `kVersions`, of the S tokens
};

/// The names of the columns, in the order of `SampleColumn`.
inline constexpr std::string_view kSampleColumnNames[] = {
    "prompt_ids",  "prompt",           "answer",
    "fields",      "response_ids",     "behavior_logprobs",
    "versions",    "finish",           "reward",
    "advantage",   "response_mask",    "reference_logprobs",
    "values",      "token_rewards",    "token_advantages",
    "partial_ids", "partial_logprobs", "partial_versions"};

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
/// Returns a cell of `column`, `kVersions` or `kPartialVersions`, that holds `versions`.
[[nodiscard]] storage::ColumnValue make_versions_cell(
    std::span<const engines::VersionSpan> versions, SampleColumn column = SampleColumn::kVersions);

/// Returns the cell of `column`.
/// Errors: `kInternal` naming row and column if the row lacks it, which means that the inputs of a
/// task are declared wrongly.
[[nodiscard]] Result<Buffer> find_cell(const storage::LeasedRow& row, SampleColumn column);
/// Returns the cell of an optional column, or null if the row lacks it. The result is borrowed from
/// `row`.
[[nodiscard]] const Buffer* find_optional_cell(const storage::LeasedRow& row, SampleColumn column);
/// Returns the text of a cell.
[[nodiscard]] std::string cell_text(const Buffer& cell);
/// Returns the spans of a cell of versions. Their versions are of line 0.
[[nodiscard]] std::vector<engines::VersionSpan> cell_versions(const Buffer& cell);

/// Returns the values of `column`.
/// Errors: those of `find_cell`.
template <class T>
[[nodiscard]] Result<std::vector<T>> read_cell(const storage::LeasedRow& row, SampleColumn column) {
  TIDEMILL_ASSIGN_OR_RETURN(const Buffer cell, find_cell(row, column));
  const auto values = cell.as<T>();
  return std::vector<T>(values.begin(), values.end());
}

/// Returns the values of an optional `column`, or none if the row lacks it.
template <class T>
[[nodiscard]] std::vector<T> read_optional_cell(const storage::LeasedRow& row,
                                                SampleColumn column) {
  const Buffer* cell = find_optional_cell(row, column);
  if (cell == nullptr) {
    return {};
  }
  const auto values = cell->as<T>();
  return {values.begin(), values.end()};
}

}  // namespace tidemill::actors
