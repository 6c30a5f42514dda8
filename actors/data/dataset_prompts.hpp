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

/// How prompts that are too long are handled.
enum class OnLongPrompt : std::uint8_t {
  kError,
  kSkip,
  kTruncateLeft,  // only its last tokens are kept
};

/// Options for reading prompts.
struct DatasetPromptOptions {
  std::int64_t max_prompt_tokens = 0;
  OnLongPrompt on_long_prompt = OnLongPrompt::kError;
};

/// The prompts that are too long and are skipped or truncated.
struct LongPrompts {
  std::uint64_t count = 0;
  std::string first;  // the location and the length of the first one
};

/// Facts about a data set that are known after all its prompts have been read.
struct PromptFacts {
  LongPrompts too_long;
  /// The largest size of a prompt in a row of the stream: ids, text, reference answer and fields.
  std::uint64_t max_bytes = 0;
  std::string largest;  // the location of that prompt
  Lengths lengths;      // of the prompts that are not skipped, after truncation
};

/// All prompts of a data set, except for those that are skipped.
struct AllPrompts {
  std::vector<Prompt> prompts;  // at least one
  LongPrompts too_long;
  Lengths lengths;  // of `prompts`
};

/// Creates a reader of `data`, whose positions are the draws.
/// Errors of `read`: naming file and line, if a prompt cannot be encoded or is too long.
[[nodiscard]] std::shared_ptr<PromptReader> make_dataset_prompt_reader(
    std::shared_ptr<storage::PromptDataset> data, TextCodec codec, DatasetPromptOptions options);

/// Reads every row of `data` once, so that bad rows are reported before the first step. Tokenizes
/// all prompts. `check_reference_answer` may be empty.
/// Errors: `kInvalidArgument` naming file and line, or if every prompt is too long.
[[nodiscard]] Result<PromptFacts> check_prompts(
    storage::PromptDataset& data, const TextCodec& codec, const DatasetPromptOptions& options,
    const engines::ReferenceAnswerCheck& check_reference_answer);

/// Reads every row of `data.eval` once, in the order of the files. Prompts that are too long are
/// handled as in training.
/// Errors: `kInvalidArgument` naming file and line, or if every prompt is too long.
[[nodiscard]] Result<AllPrompts> read_all_prompts(storage::PromptDataset& data,
                                                  const TextCodec& codec,
                                                  const DatasetPromptOptions& options);

}  // namespace tidemill::actors
