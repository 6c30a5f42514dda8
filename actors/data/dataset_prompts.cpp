// SPDX-License-Identifier: Apache-2.0
#include "actors/data/dataset_prompts.hpp"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

namespace tidemill::actors {
namespace {

// Returns a message about a prompt that is too long, or an empty string if it is not.
std::string describe_excess(const storage::PromptRow& row, std::size_t tokens,
                            std::int64_t max_tokens) {
  return static_cast<std::int64_t>(tokens) <= max_tokens
             ? ""
             : row.location.to_string() + ": the prompt has " + std::to_string(tokens) +
                   " tokens; at most " + std::to_string(max_tokens) + " leave room for a response";
}

struct EncodedPrompt {
  Prompt prompt;
  std::string cut;  // why the prompt was truncated, or empty
};

// Encodes the prompt of a row.
// Errors: `kResourceExhausted` if the prompt is too long and may not be truncated.
Result<EncodedPrompt> encode_prompt(const storage::PromptRow& row, const TextCodec& codec,
                                    const DatasetPromptOptions& options) {
  EncodedPrompt encoded;
  Prompt& prompt = encoded.prompt;
  TIDEMILL_ASSIGN_OR_RETURN(prompt.ids, codec.prompt_ids(row));
  if (std::string why = describe_excess(row, prompt.ids.size(), options.max_prompt_tokens);
      !why.empty()) {
    if (options.on_long_prompt != OnLongPrompt::kTruncateLeft) {
      return Status(Errc::kResourceExhausted,
                    std::move(why) + " (data.on_long_prompt: skip or truncate_left)");
    }
    prompt.ids.erase(prompt.ids.begin(), prompt.ids.end() - options.max_prompt_tokens);
    encoded.cut = std::move(why);
  }
  prompt.prompt = row.prompt.empty() ? row.messages : row.prompt;
  prompt.reference_answer = row.reference_answer;
  prompt.fields = row.fields;
  return encoded;
}

Status all_too_long(const std::string& key, const DatasetPromptOptions& options) {
  return invalid_argument(key + ": every prompt is longer than " +
                          std::to_string(options.max_prompt_tokens) + " tokens");
}

// Returns the size of the cells that the prompt source puts into a row. The stream counts them for
// every row, although the rows of a group share their memory.
std::uint64_t bytes_in_row(const Prompt& prompt) {
  return prompt.ids.size() * sizeof(prompt.ids.front()) + prompt.prompt.size() +
         prompt.reference_answer.size() + prompt.fields.size();
}

void count(LongPrompts& too_long, std::string what) {
  if (too_long.count++ == 0) {
    too_long.first = std::move(what);
  }
}

// Encodes the prompt of a row, or returns nullopt if it is skipped. Adds a prompt that is too long
// to `too_long`.
Result<std::optional<Prompt>> encode_and_count(const storage::PromptRow& row,
                                               const TextCodec& codec,
                                               const DatasetPromptOptions& options,
                                               LongPrompts& too_long) {
  auto encoded = encode_prompt(row, codec, options);
  if (encoded.status().code() == Errc::kResourceExhausted &&
      options.on_long_prompt == OnLongPrompt::kSkip) {
    count(too_long, encoded.status().message());
    return std::optional<Prompt>();
  }
  if (!encoded.ok()) {
    return invalid_argument(encoded.status().message());
  }
  if (!encoded.value().cut.empty()) {
    count(too_long, std::move(encoded.value().cut));
  }
  return std::optional(std::move(encoded.value().prompt));
}

// The maximum number of consecutive draws that are skipped because their prompts are too long.
// Reading that many takes minutes. More are needed only if the prompts that are short enough have
// almost no weight.
constexpr std::uint64_t kMaxSkipped = std::uint64_t{1} << 24U;

class DatasetPrompts final : public PromptReader {
public:
  DatasetPrompts(std::shared_ptr<storage::PromptDataset> data, TextCodec codec,
                 DatasetPromptOptions options)
      : data_(std::move(data)),
        codec_(std::move(codec)),
        options_(options),
        max_skipped_(std::min(data_->positions_of_all_rows(),
                              std::max(2 * data_->num_rows(), kMaxSkipped))) {}

  Result<std::vector<Prompt>> read(std::uint64_t draw, std::uint32_t count) override {
    std::vector<Prompt> prompts;
    std::uint64_t skipped_in_a_row = 0;
    for (; prompts.size() < count; ++draw) {
      const auto row = data_->row_at(draw);
      if (row.status().code() == Errc::kNotFound) {
        break;  // the end of the data
      }
      TIDEMILL_RETURN_IF_ERROR(row.status());
      auto encoded = encode_prompt(row.value(), codec_, options_);
      if (encoded.status().code() == Errc::kResourceExhausted &&
          options_.on_long_prompt == OnLongPrompt::kSkip) {
        if (++skipped_in_a_row > max_skipped_) {
          return invalid_argument("data.train: " + std::to_string(skipped_in_a_row) +
                                  " prompts in a row are longer than " +
                                  std::to_string(options_.max_prompt_tokens) + " tokens");
        }
        continue;
      }
      if (!encoded.ok()) {
        return invalid_argument(encoded.status().message());
      }
      skipped_in_a_row = 0;
      prompts.push_back(std::move(encoded.value().prompt));
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
  std::uint64_t max_skipped_;  // draws in a row; not exceeded if some prompt is short enough
};

}  // namespace

std::shared_ptr<PromptReader> make_dataset_prompt_reader(
    std::shared_ptr<storage::PromptDataset> data, TextCodec codec, DatasetPromptOptions options) {
  return std::make_shared<DatasetPrompts>(std::move(data), std::move(codec), options);
}

Result<PromptFacts> check_prompts(storage::PromptDataset& data, const TextCodec& codec,
                                  const DatasetPromptOptions& options,
                                  const engines::ReferenceAnswerCheck& check_reference_answer) {
  PromptFacts facts;
  bool any = false;
  for (std::uint64_t number = 0; number < data.num_rows(); ++number) {
    TIDEMILL_ASSIGN_OR_RETURN(const storage::PromptRow row, data.row_in_file_order(number));
    TIDEMILL_ASSIGN_OR_RETURN(const std::optional<Prompt> prompt,
                              encode_and_count(row, codec, options, facts.too_long));
    if (!prompt.has_value()) {
      continue;
    }
    any = true;
    if (const Status answer =
            check_reference_answer ? check_reference_answer(row.reference_answer) : Status();
        !answer.ok()) {
      return answer.with_context(row.location.to_string());
    }
    facts.lengths.add(std::ssize(prompt->ids), row.location);
    if (const std::uint64_t bytes = bytes_in_row(*prompt); bytes > facts.max_bytes) {
      facts.max_bytes = bytes;
      facts.largest = row.location.to_string();
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
    TIDEMILL_ASSIGN_OR_RETURN(const storage::PromptRow row, data.row_in_file_order(i));
    TIDEMILL_ASSIGN_OR_RETURN(std::optional<Prompt> prompt,
                              encode_and_count(row, codec, options, all.too_long));
    if (prompt.has_value()) {
      all.lengths.add(std::ssize(prompt->ids), row.location);
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
