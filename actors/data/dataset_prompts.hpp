// SPDX-License-Identifier: Apache-2.0
// Prompts for the prompt source, read from a data set.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "actors/data/text_codec.hpp"
#include "actors/source/spawn.hpp"
#include "engines/reward_engine.hpp"
#include "storage/dataset/dataset.hpp"

namespace tidemill::actors {

/// What happens to a prompt that leaves no room for an answer.
enum class OnLongPrompt : std::uint8_t {
  kError,
  kSkip,
  kTruncateLeft,  // its last tokens are kept
};

/// How prompts are read.
struct DatasetPromptOptions {
  std::int64_t max_prompt_tokens = 0;
  OnLongPrompt on_long_prompt = OnLongPrompt::kError;
};

/// Prompts that are too long and will be passed over or cut.
struct LongPrompts {
  std::uint64_t count = 0;
  std::string first;  // its place, and how long it is
};

/// Makes a reader of `data`, whose positions are the draws.
/// Errors, of `read`: naming file and line: a prompt that cannot be encoded, or is too long.
[[nodiscard]] std::shared_ptr<PromptReader> make_dataset_prompt_reader(
    std::shared_ptr<storage::PromptDataset> data, TextCodec codec, DatasetPromptOptions options);

/// Reads every row of `data` once, so that a bad one is known before the first step. Cost:
/// tokenizes all prompts. Errors: `kInvalidArgument` naming file and line, or that no prompt is
/// short enough.
[[nodiscard]] Result<LongPrompts> check_prompts(storage::PromptDataset& data,
                                                const TextCodec& codec,
                                                const DatasetPromptOptions& options,
                                                const engines::AnswerCheck& check_answer);

/// Reads every row of `data` once, in the order of the files, e.g. for evaluation. None is passed
/// over: where that is what happens to long prompts they are refused. Errors: as of the reader.
[[nodiscard]] Result<std::vector<Prompt>> read_all_prompts(storage::PromptDataset& data,
                                                           const TextCodec& codec,
                                                           const DatasetPromptOptions& options);

}  // namespace tidemill::actors
