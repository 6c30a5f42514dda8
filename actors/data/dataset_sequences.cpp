// SPDX-License-Identifier: Apache-2.0
#include "actors/data/dataset_sequences.hpp"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

namespace tidemill::actors {
namespace {

using engines::TrainSequence;
using storage::SupervisedRow;

// Returns whether `sequence` has a target. Token 0 is never one, since no token precedes it.
bool has_target(const TrainSequence& sequence) {
  const auto& mask = sequence.response_mask;
  return std::any_of(mask.begin() + (mask.empty() ? 0 : 1), mask.end(),
                     [](std::uint8_t target) { return target != 0; });
}

// Returns how many rows of the model `sequence` takes. The row of a token predicts the next token,
// so rows from the last target on are not needed.
std::int64_t rows_of(const TrainSequence& sequence) {
  auto last = std::ssize(sequence.response_mask) - 1;
  while (last > 0 && sequence.response_mask[static_cast<std::size_t>(last)] == 0) {
    --last;
  }
  return std::max<std::int64_t>(last, 0);
}

class DatasetSequences final : public SequenceReader {
public:
  DatasetSequences(std::shared_ptr<storage::SupervisedDataset> data, DatasetSequenceOptions options)
      : data_(std::move(data)), options_(std::move(options)) {}

  Result<std::vector<TrainSequence>> read(std::uint64_t draw, std::uint32_t count) override {
    std::vector<TrainSequence> sequences;
    for (std::uint64_t end = draw + count; draw < end; ++draw) {
      const auto row = data_->row_at(draw);
      if (row.status().code() == Errc::kNotFound) {
        break;  // the end of the data
      }
      TIDEMILL_RETURN_IF_ERROR(row.status());
      TIDEMILL_ASSIGN_OR_RETURN(TrainSequence sequence, read_row(row.value()));
      sequence.id = {draw};
      sequences.push_back(std::move(sequence));
    }
    return sequences;
  }

  // Reads every row once.
  Status check() {
    bool has_any_target = false;
    for (std::uint64_t number = 0; number < data_->num_rows(); ++number) {
      TIDEMILL_ASSIGN_OR_RETURN(const SupervisedRow row, data_->row_in_file_order(number));
      TIDEMILL_ASSIGN_OR_RETURN(const TrainSequence sequence, read_row(row));
      has_any_target = has_any_target || has_target(sequence);
      if (options_.on_row) {
        options_.on_row(rows_of(sequence), row.location);
      }
    }
    if (num_long_ > 0 && options_.log) {
      options_.log(options_.key + ": " + std::to_string(num_long_) + " of " +
                   std::to_string(data_->num_rows()) + " sequences have more than " +
                   std::to_string(options_.max_tokens) + " tokens and " +
                   (options_.on_long == OnLongPrompt::kSkip ? "are masked" : "are truncated") +
                   "; the first: " + first_long_);
    }
    if (num_partial_ > 0 && options_.log) {
      options_.log(options_.key + ": in " + std::to_string(num_partial_) + " of " +
                   std::to_string(data_->num_rows()) +
                   " conversations only some of the assistant's turns are trained on, because the "
                   "chat template renders the others differently once more messages follow; with "
                   "{% generation %} tags in the template all of them can be; the first: " +
                   first_partial_);
    }
    return has_any_target ? Status{}
                          : invalid_argument(options_.key + ": none of its " +
                                             std::to_string(data_->num_rows()) +
                                             " rows has a target (masked, or too long)");
  }

private:
  // Masks, truncates or refuses a sequence that is too long, according to the options.
  Status limit_length(const SupervisedRow& row, SupervisedTokens& tokens) {
    const auto size = static_cast<std::int64_t>(tokens.ids.size());
    if (size <= options_.max_tokens) {
      return {};
    }
    if (num_long_++ == 0) {
      first_long_ = row.location.to_string();
    }
    switch (options_.on_long) {
      case OnLongPrompt::kError:
        return invalid_argument(row.location.to_string() + ": the sequence has " +
                                std::to_string(size) + " tokens; at most " +
                                std::to_string(options_.max_tokens) +
                                " are trained on (data.on_long_prompt: skip masks it, "
                                "truncate_left keeps its end)");
      case OnLongPrompt::kSkip:
        // Every draw counts in its step, so a sequence that is too long stays, without targets.
        tokens.ids.resize(1);
        tokens.loss_mask.assign(1, 0);
        break;
      case OnLongPrompt::kTruncateLeft:
        tokens.ids.erase(tokens.ids.begin(), tokens.ids.end() - options_.max_tokens);
        tokens.loss_mask.erase(tokens.loss_mask.begin(),
                               tokens.loss_mask.end() - options_.max_tokens);
        tokens.loss_mask.front() = 0;  // the tokens before it were removed
        break;
    }
    return {};
  }

  Result<TrainSequence> read_row(const SupervisedRow& row) {
    SupervisedTokens tokens;
    if (row.kind == SupervisedRow::Kind::kTokens) {
      tokens = {row.input_ids, row.loss_mask, 0};
    } else {
      if (!codec_.has_value()) {
        TIDEMILL_ASSIGN_OR_RETURN(
            codec_, TextCodec::load(options_.model_path, options_.now, options_.chat));
        if (options_.on_tokenizer) {
          options_.on_tokenizer(codec_->tokenizer());
        }
      }
      TIDEMILL_ASSIGN_OR_RETURN(tokens, codec_->supervised(row));
    }
    if (tokens.turns_left_out > 0 && num_partial_++ == 0) {
      first_partial_ = row.location.to_string();
    }
    TIDEMILL_RETURN_IF_ERROR(limit_length(row, tokens));
    const auto outside = std::find_if(tokens.ids.begin(), tokens.ids.end(), [&](std::int32_t id) {
      return id < 0 || id >= options_.vocab_size;
    });
    if (outside != tokens.ids.end()) {
      return invalid_argument(row.location.to_string() + ": token " + std::to_string(*outside) +
                              " is outside the vocabulary of " +
                              std::to_string(options_.vocab_size));
    }
    TrainSequence sequence;
    sequence.ids = std::move(tokens.ids);
    sequence.response_mask = std::move(tokens.loss_mask);
    return sequence;
  }

  std::uint64_t num_long_ = 0;     // sequences read that were too long
  std::string first_long_;         // the location of the first one
  std::uint64_t num_partial_ = 0;  // conversations read of which turns were left out
  std::string first_partial_;      // the location of the first one
  std::shared_ptr<storage::SupervisedDataset> data_;
  DatasetSequenceOptions options_;
  std::optional<TextCodec> codec_;
};

}  // namespace

Result<std::shared_ptr<SequenceReader>> make_dataset_sequence_reader(
    std::shared_ptr<storage::SupervisedDataset> data, DatasetSequenceOptions options) {
  auto reader = std::make_shared<DatasetSequences>(std::move(data), std::move(options));
  TIDEMILL_RETURN_IF_ERROR(reader->check());
  return std::shared_ptr<SequenceReader>(std::move(reader));
}

}  // namespace tidemill::actors
