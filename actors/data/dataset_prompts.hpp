// SPDX-License-Identifier: Apache-2.0
// Prompts for the prompt source, read from a data set.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "actors/data/lengths.hpp"
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

/// What is known of a data set once each of its prompts has been read.
struct PromptFacts {
  LongPrompts too_long;
  /// The most that one prompt takes in a row of the stream: ids, text, answer and fields.
  std::uint64_t most_bytes = 0;
  std::string largest;  // the place of that prompt
  Lengths lengths;      // of the prompts that are not passed over, as they are cut
};

/// All prompts of a data set, but for those that are passed over.
struct AllPrompts {
  std::vector<Prompt> prompts;  // at least one
  LongPrompts too_long;
};

/// Makes a reader of `data`, whose positions are the draws.
/// Errors, of `read`: naming file and line: a prompt that cannot be encoded, or is too long.
[[nodiscard]] std::shared_ptr<PromptReader> make_dataset_prompt_reader(
    std::shared_ptr<storage::PromptDataset> data, TextCodec codec, DatasetPromptOptions options);

/// Reads every row of `data` once, so that a bad one is known before the first step. Cost:
/// tokenizes all prompts. Errors: `kInvalidArgument` naming file and line, or that no prompt is
/// short enough.
[[nodiscard]] Result<PromptFacts> check_prompts(storage::PromptDataset& data,
                                                const TextCodec& codec,
                                                const DatasetPromptOptions& options,
                                                const engines::AnswerCheck& check_answer);

/// Reads every row of `data.eval` once, in the order of the files. Long prompts fare as in
/// training. Errors: `kInvalidArgument` naming file and line, or that no prompt is short enough.
[[nodiscard]] Result<AllPrompts> read_all_prompts(storage::PromptDataset& data,
                                                  const TextCodec& codec,
                                                  const DatasetPromptOptions& options);

}  // namespace tidemill::actors
