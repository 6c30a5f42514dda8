// SPDX-License-Identifier: Apache-2.0
// Checks and reads one line of a JSONL file.
#pragma once

#include <string_view>

#include "base/result.hpp"
#include "storage/dataset/rows.hpp"

namespace tidemill::storage {

/// Reads a row to generate answers for. `place` is left to the caller.
///
/// Exactly one of `prompt` (a string that is not empty) and `messages` (an array of objects with a
/// `role`) is needed. `answer` may be absent, a string or an integer.
/// Errors: `kInvalidArgument` naming the key or the byte; also for more than 64 levels or 4 million
/// values, which no line of ours needs.
[[nodiscard]] Result<PromptRow> parse_prompt_row(std::string_view text);

/// Reads a row to learn from. `place` is left to the caller.
///
/// One of: `input_ids` with `loss_mask`; `messages` with at least one by the assistant; `prompt`
/// with `answer`. Errors: as above.
[[nodiscard]] Result<SupervisedRow> parse_supervised_row(std::string_view text);

}  // namespace tidemill::storage
