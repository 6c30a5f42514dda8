// SPDX-License-Identifier: Apache-2.0
// Checks and parses one line of a JSONL file.
#pragma once

#include <string_view>

#include "base/result.hpp"
#include "storage/dataset/rows.hpp"

namespace tidemill::storage {

/// Parses a row to generate responses for. The caller sets `location`.
///
/// Requires exactly one of `prompt` (a nonempty string) and `messages` (an array of objects with a
/// `role`). `answer` may be absent, a string or an integer.
/// Errors: `kInvalidArgument` naming the key or the byte; also for more than 64 levels or 4 million
/// values, which no valid row needs.
[[nodiscard]] Result<PromptRow> parse_prompt_row(std::string_view text);

/// Parses a row to train on. The caller sets `location`.
///
/// Requires one of: `input_ids` with `loss_mask`; `messages` with at least one from the assistant;
/// `prompt` with `answer`. Errors: as `parse_prompt_row`.
[[nodiscard]] Result<SupervisedRow> parse_supervised_row(std::string_view text);

}  // namespace tidemill::storage
