// SPDX-License-Identifier: Apache-2.0
// Checks and parses the text of one row.
#pragma once

#include <string_view>

#include "base/result.hpp"
#include "storage/dataset/rows.hpp"

namespace tidemill::storage {

/// Parses a row to generate responses for. The caller sets `location`.
///
/// Requires exactly one of `prompt` (a nonempty string, or an array as in `messages`) and
/// `messages` (an array of objects with a `role`). `answer` may be absent, a string or an integer.
/// Beside messages, `tools` may be an array of functions with names, as in OpenAI's API.
/// Errors: `kInvalidArgument` naming the key or the byte; also for more than 64 levels or 4 million
/// values, which no valid row needs.
[[nodiscard]] Result<PromptRow> parse_prompt_row(std::string_view text);

/// Parses a row to train on. The caller sets `location`.
///
/// The members that the row has, and that are not null, decide its kind:
/// - `text`, a string
/// - `prompt` and `answer`: a string, and a string or an integer
/// - `prompt` and `completion`: two strings, or two arrays as in `messages`
/// - `messages`, with at least one from the assistant that has no `weight` of 0; `answer` is
/// ignored
/// - `input_ids`, alone or with either `loss_mask` (0 or 1 for each id) or `labels` (the id itself,
///   or -100 if it is not a target). Alone, all ids are targets.
///
/// Beside messages, `tools` may be an array as in `parse_prompt_row`, and members of OpenAI's rows
/// that are not supported are refused (`functions`, `function_call`, `parallel_tool_calls`). Other
/// members are ignored. No text may be empty.
/// Errors: as `parse_prompt_row`; also for members of several kinds or of none, naming them.
[[nodiscard]] Result<SupervisedRow> parse_supervised_row(std::string_view text);

}  // namespace tidemill::storage
