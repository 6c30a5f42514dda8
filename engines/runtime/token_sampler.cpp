// SPDX-License-Identifier: Apache-2.0
#include "engines/runtime/token_sampler.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.hpp"

namespace tidemill::engines {
namespace {

// Returns the prompt token that the row at `position` must score, or -1.
std::int32_t prompt_target(const RolloutSequence& sequence, std::int64_t position) {
  const bool scored = sequence.request.prompt_logprobs && position >= sequence.num_scored &&
                      position + 1 < sequence.prompt_length;
  return scored ? sequence.tokens[static_cast<std::size_t>(position + 1)] : -1;
}

bool wants_logits(const RolloutSequence& sequence, std::int64_t position) {
  return sequence.request.prompt_logits && position >= sequence.num_scored &&
         position < sequence.prompt_length;
}

std::string not_finite(const RolloutSequence& sequence, std::int64_t position) {
  return "logits after token " + std::to_string(position) + " are not finite" +
         sample_text(sequence.request.id);
}

// Fails with the device, after which nothing can go on.
void check_device(const Status& status) {
  TIDEMILL_CHECK(status.ok()) << status.to_string();
}

}  // namespace

Status TokenSampler::reserve(std::int64_t rows) {
  max_rows_ = std::clamp<std::int64_t>(rows, 1, RuntimeContext::logit_rows(context_.config));
  TIDEMILL_RETURN_IF_ERROR(hidden_.reserve(max_rows_, context_.config.hidden_size));
  TIDEMILL_RETURN_IF_ERROR(logits_.reserve(max_rows_, context_.config.vocab_size));
  return logprobs_.reserve(max_rows_, 1);
}

std::vector<SampledToken> TokenSampler::run(const LaidOutWeights& weights, ConstMatrix hidden,
                                            std::span<const RolloutChunk> chunks) {
  std::vector<SampledToken> sampled_tokens(chunks.size());
  const std::vector<Row> rows = rows_of(weights, chunks, sampled_tokens);
  const auto max_rows = static_cast<std::size_t>(max_rows_);
  for (std::size_t first = 0; first < rows.size(); first += max_rows) {
    const auto part = std::span(rows).subspan(first, std::min(max_rows, rows.size() - first));
    prepare(part);
    gather_hidden(hidden, part);
    logits_.reshape(std::ssize(part), context_.config.vocab_size);
    context_.transformer->logits(*weights.base, adapter_runs(part), hidden_.view(), logits_.view());
    score_prompts(part);
    sample_tokens(part);
  }
  // A chunk without a token and without an error has an outcome only if it completes a request that
  // scores its prompt and generates nothing.
  std::vector<SampledToken> outcomes;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const RolloutSequence& sequence = *chunks[i].sequence;
    const bool prompt_done =
        sequence.request.max_new_tokens == 0 && sequence.num_uncached() == chunks[i].num_tokens;
    if (prompt_done || sampled_tokens[i].token >= 0 || !sampled_tokens[i].error.empty()) {
      outcomes.push_back(std::move(sampled_tokens[i]));
    }
  }
  return outcomes;
}

// Returns the rows whose logits are needed. Each refers to the entry of its chunk in `sampled`.
std::vector<TokenSampler::Row> TokenSampler::rows_of(const LaidOutWeights& weights,
                                                     std::span<const RolloutChunk> chunks,
                                                     std::span<SampledToken> sampled) const {
  std::vector<Row> rows;
  std::int64_t index = 0;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const RolloutSequence& sequence = *chunks[i].sequence;
    const Adapter* adapter = adapter_of(sequence, weights);
    sampled[i].sequence = chunks[i].sequence;
    if (chunks[i].num_tokens == 0 && sequence.request.max_new_tokens > 0) {
      rows.push_back({-1, sequence.length() - 1, &sampled[i], adapter, true});
    }
    for (std::int64_t k = 0; k < chunks[i].num_tokens; ++k, ++index) {
      const std::int64_t position = sequence.num_cached + k;
      const bool last = position + 1 == sequence.length();
      const bool samples_token = last && sequence.request.max_new_tokens > 0;
      const std::int32_t target = prompt_target(sequence, position);
      if (samples_token || target >= 0 || wants_logits(sequence, position)) {
        rows.push_back({index, position, &sampled[i], adapter, last, target});
      }
    }
  }
  return rows;
}

// Uploads the lists of the operations on `rows`.
void TokenSampler::prepare(std::span<const Row> rows) {
  std::vector<std::int32_t> hidden_rows;
  std::vector<std::int32_t> targets;
  for (const Row& row : rows) {
    hidden_rows.push_back(static_cast<std::int32_t>(row.hidden_row));
    targets.push_back(row.target);
  }
  PassContents contents;
  const PassRange hidden_range = contents.add_indices(hidden_rows);
  const PassRange target_range = contents.add_indices(targets);
  pass_ = context_.ops->prepare_pass(std::move(contents), std::move(pass_)).value();
  hidden_rows_ = pass_->indices(hidden_range);
  targets_ = pass_->indices(target_range);
}

void TokenSampler::gather_hidden(ConstMatrix hidden, std::span<const Row> rows) {
  const Matrix gathered = hidden_.reshape(std::ssize(rows), context_.config.hidden_size);
  if (!hidden.is_null()) {
    context_.ops->copy_rows(hidden, hidden_rows_, gathered, {});
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].hidden_row < 0) {
      context_.ops->write(*rows[i].sampled->sequence->row,
                          gathered.row(static_cast<std::int64_t>(i)));
    }
  }
}

std::vector<AdapterRun> TokenSampler::adapter_runs(std::span<const Row> rows) {
  std::vector<AdapterRun> runs;
  std::int64_t num_rows = 0;
  for (const Row& row : rows) {
    append_adapter_rows(row.adapter, num_rows++, 1, runs);
  }
  return runs;
}

void TokenSampler::score_prompts(std::span<const Row> rows) {
  std::vector<float> logprobs(rows.size());
  const bool any = std::ranges::any_of(rows, [](const Row& row) { return row.target >= 0; });
  if (any) {
    const Vector scored = logprobs_.reshape(std::ssize(rows), 1).elements();
    context_.ops->log_softmax_gather(logits_.view(), targets_, 1.0F, scored, {});
    check_device(context_.ops->read(scored, logprobs));
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    RolloutSequence& sequence = *rows[i].sampled->sequence;
    const bool scored = rows[i].target >= 0;
    if (scored && !std::isfinite(logprobs[i])) {
      rows[i].sampled->error = not_finite(sequence, rows[i].position);
      continue;
    }
    if (wants_logits(sequence, rows[i].position)) {
      keep_logits(rows[i], static_cast<std::int64_t>(i));
    }
    if (scored && rows[i].sampled->error.empty()) {
      sequence.result.prompt_logprobs.push_back(logprobs[i]);
      const std::vector<TokenLogprob> top =
          read_top(static_cast<std::int64_t>(i), 1.0F, sequence.request.prompt_top_logprobs,
                   {rows[i].target, logprobs[i]});
      auto& all = sequence.result.prompt_top_logprobs;
      all.insert(all.end(), top.begin(), top.end());
    }
  }
}

// Appends row `index` of the logits to the result of its sequence.
void TokenSampler::keep_logits(const Row& row, std::int64_t index) {
  RolloutSequence& sequence = *row.sampled->sequence;
  std::vector<float>& kept = sequence.result.prompt_logits;
  const auto count = static_cast<std::size_t>(logits_.cols());
  kept.resize(kept.size() + count);
  const std::span<float> added = std::span(kept).last(count);
  check_device(context_.ops->read(logits_.view().row(index), added));
  if (!std::ranges::all_of(added, [](float x) { return std::isfinite(x); })) {
    row.sampled->error = not_finite(sequence, row.position);
  }
}

// Returns the most probable tokens of row `index` of the logits, whose values are finite.
std::vector<TokenLogprob> TokenSampler::read_top(std::int64_t index, float inv_temperature,
                                                 std::int32_t count, TokenLogprob known) {
  if (count == 0) {
    return {};
  }
  row_.resize(static_cast<std::size_t>(logits_.cols()));
  check_device(context_.ops->read(logits_.view().row(index), row_));
  return top_logprobs(row_, inv_temperature, static_cast<std::size_t>(count), known);
}

// Returns the tokens that the constraint of a row's sequence permits, which `words` holds, or all
// if there is none.
TokenMask TokenSampler::mask_of(const Row& row, std::vector<std::uint64_t>& words) const {
  const RolloutSequence& sequence = *row.sampled->sequence;
  if (!sequence.constraint.has_value()) {
    return {};
  }
  words.resize(mask_words(context_.config.vocab_size));
  const Status made = sequence.constraint->mask(sequence.request.stop_ids, words);
  if (!made.ok()) {
    row.sampled->error = "constraint: " + made.message() + sample_text(sequence.request.id);
  }
  return {words};
}

void TokenSampler::sample_tokens(std::span<const Row> rows) {
  std::vector<SampleRequest> requests;
  masks_.resize(std::max(masks_.size(), rows.size()));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const RolloutSequence& sequence = *rows[i].sampled->sequence;
    if (rows[i].last && sequence.request.max_new_tokens > 0 && rows[i].sampled->error.empty()) {
      const TokenMask mask = mask_of(rows[i], masks_[i]);
      if (!rows[i].sampled->error.empty()) {
        continue;
      }
      requests.push_back({static_cast<std::int64_t>(i),
                          &sequence.request.sampling,
                          {sequence.request.prompt_ids, sequence.response()},
                          {sequence.request.seed, SampleId{sequence.request.key()},
                           static_cast<std::uint64_t>(sequence.length())}});
      requests.back().mask = mask;
    }
  }
  if (requests.empty()) {
    return;
  }
  auto outcomes = context_.ops->sample(logits_.view(), requests);
  check_device(outcomes.status());
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const Row& row = rows[static_cast<std::size_t>(requests[i].row)];
    SampleOutcome& outcome = outcomes.value()[i];
    row.sampled->token = outcome.token;
    row.sampled->logprob = outcome.logprob;
    row.sampled->error = std::move(outcome.error);
    const RolloutRequest& request = row.sampled->sequence->request;
    if (!row.sampled->error.empty() && request.key() != request.id.value) {
      row.sampled->error += sample_text(request.id);  // the error names the key
    }
    if (row.sampled->error.empty() && !std::isfinite(outcome.logprob)) {
      row.sampled->error = not_finite(*row.sampled->sequence, row.position);
    }
    if (row.sampled->error.empty()) {
      const float temperature = request.sampling.temperature;
      row.sampled->top_logprobs =
          read_top(requests[i].row, temperature > 0.0F ? 1.0F / temperature : 1.0F,
                   request.top_logprobs, {outcome.token, outcome.logprob});
    }
  }
}

}  // namespace tidemill::engines
