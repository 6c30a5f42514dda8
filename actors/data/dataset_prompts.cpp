// SPDX-License-Identifier: Apache-2.0
#include "actors/data/dataset_prompts.hpp"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

namespace tidemill::actors {
namespace {

// What is said of a prompt that is too long; empty when it is not.
std::string excess(const storage::PromptRow& row, std::size_t tokens, std::int64_t max_tokens) {
  return static_cast<std::int64_t>(tokens) <= max_tokens
             ? ""
             : row.place.to_string() + ": the prompt has " + std::to_string(tokens) +
                   " tokens; at most " + std::to_string(max_tokens) + " leave room for an answer";
}

struct MadePrompt {
  Prompt prompt;
  std::string cut;  // why it was cut; empty when it was not
};

// Errors: `kResourceExhausted` when it is too long and is not to be cut.
Result<MadePrompt> make_prompt(const storage::PromptRow& row, const TextCodec& codec,
                               const DatasetPromptOptions& options) {
  MadePrompt made;
  Prompt& prompt = made.prompt;
  TIDEMILL_ASSIGN_OR_RETURN(prompt.ids, codec.prompt_ids(row));
  if (std::string why = excess(row, prompt.ids.size(), options.max_prompt_tokens); !why.empty()) {
    if (options.on_long_prompt != OnLongPrompt::kTruncateLeft) {
      return Status(Errc::kResourceExhausted,
                    std::move(why) + " (data.on_long_prompt: skip or truncate_left)");
    }
    prompt.ids.erase(prompt.ids.begin(), prompt.ids.end() - options.max_prompt_tokens);
    made.cut = std::move(why);
  }
  prompt.prompt = row.prompt.empty() ? row.messages : row.prompt;
  prompt.answer = row.answer;
  prompt.fields = row.fields;
  return made;
}

Status all_too_long(const std::string& key, const DatasetPromptOptions& options) {
  return invalid_argument(key + ": every prompt is longer than " +
                          std::to_string(options.max_prompt_tokens) + " tokens");
}

// As the prompt source puts it into a row, whose cells are counted for each row by itself.
std::uint64_t bytes_in_row(const Prompt& prompt) {
  return prompt.ids.size() * sizeof(prompt.ids.front()) + prompt.prompt.size() +
         prompt.answer.size() + prompt.fields.size();
}

void count(LongPrompts& too_long, std::string what) {
  if (too_long.count++ == 0) {
    too_long.first = std::move(what);
  }
}

// Makes the prompt of a row; nothing when it is passed over. Counts what is too long.
Result<std::optional<Prompt>> make_counted(const storage::PromptRow& row, const TextCodec& codec,
                                           const DatasetPromptOptions& options,
                                           LongPrompts& too_long) {
  auto made = make_prompt(row, codec, options);
  if (made.status().code() == Errc::kResourceExhausted &&
      options.on_long_prompt == OnLongPrompt::kSkip) {
    count(too_long, made.status().message());
    return std::optional<Prompt>();
  }
  if (!made.ok()) {
    return invalid_argument(made.status().message());
  }
  if (!made.value().cut.empty()) {
    count(too_long, std::move(made.value().cut));
  }
  return std::optional(std::move(made.value().prompt));
}

// Draws of prompts that are too long, minutes of them: what is short enough has next to no weight.
constexpr std::uint64_t kMostSkipped = std::uint64_t{1} << 24U;

class DatasetPrompts final : public PromptReader {
public:
  DatasetPrompts(std::shared_ptr<storage::PromptDataset> data, TextCodec codec,
                 DatasetPromptOptions options)
      : data_(std::move(data)),
        codec_(std::move(codec)),
        options_(options),
        most_skipped_(std::min(data_->positions_of_all_rows(),
                               std::max(2 * data_->num_rows(), kMostSkipped))) {}

  Result<std::vector<Prompt>> read(std::uint64_t draw, std::uint32_t count) override {
    std::vector<Prompt> prompts;
    std::uint64_t skipped_in_a_row = 0;
    for (; prompts.size() < count; ++draw) {
      const auto row = data_->row_at(draw);
      if (row.status().code() == Errc::kNotFound) {
        break;  // the end of the data
      }
      TIDEMILL_RETURN_IF_ERROR(row.status());
      auto made = make_prompt(row.value(), codec_, options_);
      if (made.status().code() == Errc::kResourceExhausted &&
          options_.on_long_prompt == OnLongPrompt::kSkip) {
        if (++skipped_in_a_row > most_skipped_) {
          return invalid_argument("data.train: " + std::to_string(skipped_in_a_row) +
                                  " prompts in a row are longer than " +
                                  std::to_string(options_.max_prompt_tokens) + " tokens");
        }
        continue;
      }
      if (!made.ok()) {
        return invalid_argument(made.status().message());
      }
      skipped_in_a_row = 0;
      prompts.push_back(std::move(made.value().prompt));
      prompts.back().draw = draw;
      prompts.back().epoch = draw / data_->num_rows();
      prompts.back().position = draw % data_->num_rows();
    }
    return prompts;
  }

private:
  std::shared_ptr<storage::PromptDataset> data_;
  TextCodec codec_;
  DatasetPromptOptions options_;
  std::uint64_t most_skipped_;  // in a row; no more as long as one row is short enough
};

}  // namespace

std::shared_ptr<PromptReader> make_dataset_prompt_reader(
    std::shared_ptr<storage::PromptDataset> data, TextCodec codec, DatasetPromptOptions options) {
  return std::make_shared<DatasetPrompts>(std::move(data), std::move(codec), options);
}

Result<PromptFacts> check_prompts(storage::PromptDataset& data, const TextCodec& codec,
                                  const DatasetPromptOptions& options,
                                  const engines::AnswerCheck& check_answer) {
  PromptFacts facts;
  bool any = false;
  for (std::uint64_t number = 0; number < data.num_rows(); ++number) {
    TIDEMILL_ASSIGN_OR_RETURN(const storage::PromptRow row, data.filed_row(number));
    TIDEMILL_ASSIGN_OR_RETURN(const std::optional<Prompt> prompt,
                              make_counted(row, codec, options, facts.too_long));
    if (!prompt.has_value()) {
      continue;
    }
    any = true;
    if (const Status answer = check_answer ? check_answer(row.answer) : Status(); !answer.ok()) {
      return answer.with_context(row.place.to_string());
    }
    facts.lengths.add(std::ssize(prompt->ids));
    if (const std::uint64_t bytes = bytes_in_row(*prompt); bytes > facts.most_bytes) {
      facts.most_bytes = bytes;
      facts.largest = row.place.to_string();
    }
  }
  if (!any) {
    return all_too_long("data.train", options);
  }
  return facts;
}

Result<AllPrompts> read_all_prompts(storage::PromptDataset& data, const TextCodec& codec,
                                    const DatasetPromptOptions& options) {
  AllPrompts all;
  for (std::uint64_t i = 0; i < data.num_rows(); ++i) {
    TIDEMILL_ASSIGN_OR_RETURN(const storage::PromptRow row, data.filed_row(i));
    TIDEMILL_ASSIGN_OR_RETURN(std::optional<Prompt> prompt,
                              make_counted(row, codec, options, all.too_long));
    if (prompt.has_value()) {
      all.prompts.push_back(std::move(*prompt));
      all.prompts.back().draw = i;
    }
  }
  if (all.prompts.empty()) {
    return all_too_long("data.eval", options);
  }
  return all;
}

}  // namespace tidemill::actors
