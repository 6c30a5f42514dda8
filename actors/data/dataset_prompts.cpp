// SPDX-License-Identifier: Apache-2.0
#include "actors/data/dataset_prompts.hpp"

#include <utility>

namespace tidemill::actors {
namespace {

Result<Prompt> make_prompt(const storage::PromptRow& row, const TextCodec& codec,
                           std::int64_t max_tokens) {
  Prompt prompt;
  TIDEMILL_ASSIGN_OR_RETURN(prompt.ids, codec.prompt_ids(row));
  if (static_cast<std::int64_t>(prompt.ids.size()) > max_tokens) {
    return Status(Errc::kResourceExhausted,
                  row.place.to_string() + ": the prompt has " + std::to_string(prompt.ids.size()) +
                      " tokens; at most " + std::to_string(max_tokens) +
                      " leave room for an answer (data.on_long_prompt: skip passes over it)");
  }
  prompt.prompt = row.prompt.empty() ? row.messages : row.prompt;
  prompt.answer = row.answer;
  prompt.fields = row.fields;
  return prompt;
}

Status all_too_long(const DatasetPromptOptions& options) {
  return invalid_argument("data.train: every prompt is longer than " +
                          std::to_string(options.max_prompt_tokens) + " tokens");
}

class DatasetPrompts final : public PromptReader {
public:
  DatasetPrompts(std::shared_ptr<storage::PromptDataset> data, TextCodec codec,
                 DatasetPromptOptions options)
      : data_(std::move(data)), codec_(std::move(codec)), options_(options) {}

  Result<std::vector<Prompt>> read(std::uint64_t draw, std::uint32_t count) override {
    std::vector<Prompt> prompts;
    std::uint64_t skipped_in_a_row = 0;
    for (; prompts.size() < count; ++draw) {
      const auto row = data_->row_at(draw);
      if (row.status().code() == Errc::kNotFound) {
        break;  // the end of the data
      }
      TIDEMILL_RETURN_IF_ERROR(row.status());
      auto prompt = make_prompt(row.value(), codec_, options_.max_prompt_tokens);
      if (prompt.status().code() == Errc::kResourceExhausted &&
          options_.on_long_prompt == OnLongPrompt::kSkip) {
        if (++skipped_in_a_row > data_->num_rows()) {
          return all_too_long(options_);
        }
        continue;
      }
      if (!prompt.ok()) {
        return invalid_argument(prompt.status().message());
      }
      skipped_in_a_row = 0;
      prompt.value().draw = draw;
      prompt.value().epoch = draw / data_->num_rows();
      prompt.value().position = draw % data_->num_rows();
      prompts.push_back(std::move(prompt).value());
    }
    return prompts;
  }

private:
  std::shared_ptr<storage::PromptDataset> data_;
  TextCodec codec_;
  DatasetPromptOptions options_;
};

}  // namespace

std::shared_ptr<PromptReader> make_dataset_prompt_reader(
    std::shared_ptr<storage::PromptDataset> data, TextCodec codec, DatasetPromptOptions options) {
  return std::make_shared<DatasetPrompts>(std::move(data), std::move(codec), options);
}

Result<LongPrompts> check_prompts(storage::PromptDataset& data, const TextCodec& codec,
                                  const DatasetPromptOptions& options,
                                  const engines::AnswerCheck& check_answer) {
  LongPrompts too_long;
  for (std::uint64_t draw = 0; draw < data.num_rows(); ++draw) {
    TIDEMILL_ASSIGN_OR_RETURN(const storage::PromptRow row, data.row_at(draw));
    const auto prompt = make_prompt(row, codec, options.max_prompt_tokens);
    if (prompt.status().code() == Errc::kResourceExhausted &&
        options.on_long_prompt == OnLongPrompt::kSkip) {
      too_long.first = too_long.count++ == 0 ? prompt.status().message() : too_long.first;
      continue;
    }
    if (!prompt.ok()) {
      return invalid_argument(prompt.status().message());
    }
    if (const Status answer = check_answer ? check_answer(row.answer) : Status(); !answer.ok()) {
      return answer.with_context(row.place.to_string());
    }
  }
  if (too_long.count == data.num_rows()) {
    return all_too_long(options);
  }
  return too_long;
}

Result<std::vector<Prompt>> read_all_prompts(storage::PromptDataset& data, const TextCodec& codec,
                                             std::int64_t max_prompt_tokens) {
  std::vector<Prompt> prompts;
  for (std::uint64_t i = 0; i < data.num_rows(); ++i) {
    TIDEMILL_ASSIGN_OR_RETURN(const storage::PromptRow row, data.row_at(i));
    auto prompt = make_prompt(row, codec, max_prompt_tokens);
    if (!prompt.ok()) {
      return invalid_argument(prompt.status().message());
    }
    prompt.value().draw = i;
    prompts.push_back(std::move(prompt).value());
  }
  return prompts;
}

}  // namespace tidemill::actors
