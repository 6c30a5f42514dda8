// SPDX-License-Identifier: Apache-2.0
// Prompts for the prompt source, read from a data set.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "actors/data/text_codec.hpp"
#include "actors/source/spawn.hpp"
#include "storage/dataset/dataset.hpp"

namespace tidemill::actors {

/// What happens to a prompt that leaves no room for an answer.
enum class OnLongPrompt : std::uint8_t { kError, kSkip };

/// How prompts are read.
struct DatasetPromptOptions {
  std::int64_t max_prompt_tokens = 0;
  OnLongPrompt on_long_prompt = OnLongPrompt::kError;
  /// Told each time a prompt is skipped.
  std::function<void(const std::string&)> log;
};

/// Makes a reader of `data`, whose positions are the draws.
/// Errors, of `read`: naming file and line: a prompt that cannot be encoded, or is too long.
[[nodiscard]] std::shared_ptr<PromptReader> make_dataset_prompt_reader(
    std::shared_ptr<storage::PromptDataset> data, TextCodec codec, DatasetPromptOptions options);

/// Reads every row of `data` once, in the order of the files, e.g. for evaluation.
/// Errors: as above.
[[nodiscard]] Result<std::vector<Prompt>> read_all_prompts(storage::PromptDataset& data,
                                                           const TextCodec& codec,
                                                           std::int64_t max_prompt_tokens);

}  // namespace tidemill::actors
