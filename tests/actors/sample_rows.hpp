// SPDX-License-Identifier: Apache-2.0
// Rows of the stream "samples" as its users put, lease and write them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "actors/stream/messages.hpp"
#include "actors/stream/sample_columns.hpp"

namespace tidemill::test {

/// Makes the group `group` of `size` rows, as the prompt source puts it: row ids count admissions.
inline actors::NewGroup sample_group(std::uint64_t group, std::uint32_t size) {
  using actors::SampleColumn;
  const std::vector<storage::ColumnValue> cells{
      actors::make_cell(SampleColumn::kPromptIds, std::vector<std::int32_t>{1, 2, 3}),
      actors::make_text_cell(SampleColumn::kPrompt, "prompt " + std::to_string(group)),
      actors::make_text_cell(SampleColumn::kAnswer, "answer"),
      actors::make_text_cell(SampleColumn::kFields, "{}")};
  actors::NewGroup rows;
  rows.draw = group;
  for (std::uint32_t index = 0; index < size; ++index) {
    storage::SampleRow row;
    row.id = {group * size + index};
    row.group = {group};
    row.index_in_group = index;
    row.group_size = size;
    rows.rows.push_back({row, cells});
  }
  return rows;
}

inline actors::LeaseRequest sample_lease(actors::SampleTask task, std::uint32_t max_units,
                                         Duration wait = Duration{0}) {
  actors::LeaseRequest request;
  request.task = actors::task_id(task);
  request.consumer = "consumer";
  request.max_units = max_units;
  request.wait = wait;
  return request;
}

/// The columns that a rollout of two tokens by `step` writes.
inline std::vector<storage::ColumnValue> rollout_cells(std::uint64_t step = 0) {
  using actors::SampleColumn;
  const engines::VersionSpan span{{0, 0, step}, 2};
  return {actors::make_cell(SampleColumn::kResponseIds, std::vector<std::int32_t>{7, 8}),
          actors::make_cell(SampleColumn::kBehaviorLogprobs, std::vector<float>{-0.5F, -0.25F}),
          actors::make_versions_cell({&span, 1}),
          actors::make_cell(SampleColumn::kFinish, std::vector<std::uint8_t>{0})};
}
inline std::vector<storage::ColumnValue> reward_cells(double reward = 1.0) {
  return {actors::make_cell(actors::SampleColumn::kReward, std::vector<double>{reward})};
}
inline std::vector<storage::ColumnValue> advantage_cells(float advantage = 0.5F) {
  return {actors::make_cell(actors::SampleColumn::kAdvantage, std::vector<float>{advantage})};
}

/// A row with every column that training reads, as the stream would lease it.
inline storage::LeasedRow trainable_row(std::uint64_t id, std::uint64_t group,
                                        std::uint64_t step = 0, double reward = 1.0) {
  storage::LeasedRow leased;
  leased.row.id = {id};
  leased.row.group = {group};
  leased.lease = {{id}, 1};
  leased.columns = sample_group(group, 1).rows.front().columns;
  for (const auto& cells : {rollout_cells(step), reward_cells(reward), advantage_cells()}) {
    leased.columns.insert(leased.columns.end(), cells.begin(), cells.end());
  }
  return leased;
}

/// Answers all leased rows of `task` with the same cells.
inline actors::Completion completion_of(actors::SampleTask task,
                                        const std::vector<storage::LeasedRow>& rows,
                                        const std::vector<storage::ColumnValue>& cells) {
  actors::Completion completion{actors::task_id(task), "consumer", {}};
  for (const storage::LeasedRow& row : rows) {
    completion.rows.push_back({row.lease, cells, {}});
  }
  return completion;
}

inline actors::Return return_of(actors::SampleTask task,
                                const std::vector<storage::LeasedRow>& rows,
                                const std::string& reason = "") {
  actors::Return back{actors::task_id(task), "consumer", {}, reason};
  for (const storage::LeasedRow& row : rows) {
    back.rows.push_back(row.lease);
  }
  return back;
}

}  // namespace tidemill::test
