// SPDX-License-Identifier: Apache-2.0
#include "engines/runtime/token_sampler.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace tidemill::engines {
namespace {

// Returns the factor of the logits, computed exactly as for `HeadOptions::temperature`.
float inverse_temperature(const RolloutSequence& sequence) {
  const float temperature = sequence.request.sampling.temperature;
  return temperature == 0.0F ? 1.0F : 1.0F / temperature;
}

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

}  // namespace

std::vector<SampledToken> TokenSampler::run(const LaidOutWeights& weights, ConstMatrix hidden,
                                            std::span<const RolloutChunk> chunks) {
  std::vector<SampledToken> sampled_tokens(chunks.size());
  std::vector<Row> rows;
  std::int64_t index = 0;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const RolloutSequence& sequence = *chunks[i].sequence;
    const Adapter* adapter = adapter_of(sequence, weights);
    sampled_tokens[i].sequence = chunks[i].sequence;
    if (chunks[i].num_tokens == 0 && sequence.request.max_new_tokens > 0) {
      rows.push_back(
          {sequence.row->data(), sequence.length() - 1, &sampled_tokens[i], adapter, true});
    }
    for (std::int64_t k = 0; k < chunks[i].num_tokens; ++k, ++index) {
      const std::int64_t position = sequence.num_cached + k;
      const bool last = position + 1 == sequence.length();
      const bool samples_token = last && sequence.request.max_new_tokens > 0;
      if (samples_token || prompt_target(sequence, position) >= 0 ||
          wants_logits(sequence, position)) {
        rows.push_back({hidden.row(index), position, &sampled_tokens[i], adapter, last});
      }
    }
  }
  const auto max_rows = static_cast<std::size_t>(RuntimeContext::logit_rows(context_.config));
  for (std::size_t first = 0; first < rows.size(); first += max_rows) {
    const auto part = std::span(rows).subspan(first, std::min(max_rows, rows.size() - first));
    const auto count = static_cast<std::int64_t>(part.size());
    const Matrix gathered = hidden_.reshape(count, context_.config.hidden_size);
    for (std::int64_t i = 0; i < count; ++i) {
      std::copy_n(part[static_cast<std::size_t>(i)].hidden, gathered.cols, gathered.row(i));
    }
    const Matrix logits = logits_.reshape(count, context_.config.vocab_size);
    context_.transformer->logits(*weights.base, adapter_runs(part), gathered, logits);
    score_prompts(part, logits);
    sample_tokens(part, logits);
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

std::vector<AdapterRun> TokenSampler::adapter_runs(std::span<const Row> rows) {
  std::vector<AdapterRun> runs;
  std::int64_t num_rows = 0;
  for (const Row& row : rows) {
    append_adapter_rows(row.adapter, num_rows++, 1, runs);
  }
  return runs;
}

void TokenSampler::score_prompts(std::span<const Row> rows, ConstMatrix logits) {
  std::vector<std::int32_t> targets;
  for (const Row& row : rows) {
    targets.push_back(prompt_target(*row.sampled->sequence, row.position));
  }
  std::vector<float> logprobs(rows.size());
  if (std::ranges::any_of(targets, [](std::int32_t target) { return target >= 0; })) {
    context_.ops->log_softmax_gather(logits, targets, 1.0F, logprobs, {});
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    RolloutSequence& sequence = *rows[i].sampled->sequence;
    const std::span row(logits.row(static_cast<std::int64_t>(i)),
                        static_cast<std::size_t>(logits.cols));
    const bool keep_logits = wants_logits(sequence, rows[i].position);
    if ((targets[i] >= 0 && !std::isfinite(logprobs[i])) ||
        (keep_logits && !std::ranges::all_of(row, [](float x) { return std::isfinite(x); }))) {
      rows[i].sampled->error = not_finite(sequence, rows[i].position);
      continue;
    }
    if (targets[i] >= 0) {
      sequence.result.prompt_logprobs.push_back(logprobs[i]);
    }
    if (keep_logits) {
      auto& kept = sequence.result.prompt_logits;
      kept.insert(kept.end(), row.begin(), row.end());
    }
  }
}

void TokenSampler::sample_tokens(std::span<const Row> rows, ConstMatrix logits) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].last && rows[i].sampled->sequence->request.max_new_tokens > 0 &&
        rows[i].sampled->error.empty()) {
      sample_token(rows[i], {logits.row(static_cast<std::int64_t>(i)),
                             static_cast<std::size_t>(logits.cols)});
    }
  }
  // Consecutive rows with the same temperature are scored in one call.
  for (std::size_t first = 0, end = 0; first < rows.size(); first = end) {
    const float inverse = inverse_temperature(*rows[first].sampled->sequence);
    std::vector<std::int32_t> targets;
    for (; end < rows.size() && inverse_temperature(*rows[end].sampled->sequence) == inverse;
         ++end) {
      targets.push_back(rows[end].last ? rows[end].sampled->token : -1);
    }
    std::vector<float> logprobs(targets.size());
    context_.ops->log_softmax_gather(
        logits.slice_rows(static_cast<std::int64_t>(first), static_cast<std::int64_t>(end - first)),
        targets, inverse, logprobs, {});
    for (std::size_t i = 0; i < targets.size(); ++i) {
      if (targets[i] < 0) {
        continue;
      }
      SampledToken& sampled = *rows[first + i].sampled;
      sampled.logprob = logprobs[i];
      if (!std::isfinite(sampled.logprob)) {
        sampled.error = not_finite(*sampled.sequence, rows[first + i].position);
      }
    }
  }
}

void TokenSampler::sample_token(const Row& row, std::span<const float> logits) {
  const RolloutSequence& sequence = *row.sampled->sequence;
  const TokenHistory history{sequence.request.prompt_ids, sequence.response()};
  const SamplingKey key{sequence.request.seed, sequence.request.id,
                        static_cast<std::uint64_t>(sequence.length())};
  const auto token = sampler_.sample(logits, sequence.request.sampling, history, key);
  if (token.ok()) {
    row.sampled->token = token.value();
  } else {
    row.sampled->error = token.status().message();
  }
}

}  // namespace tidemill::engines
