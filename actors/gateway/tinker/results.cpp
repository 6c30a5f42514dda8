// SPDX-License-Identifier: Apache-2.0
#include "actors/gateway/tinker/results.hpp"

#include <algorithm>
#include <limits>

#include "actors/gateway/tinker/tinker_wire.pb.h"

namespace tidemill::actors::tinker {
namespace {

using engines::RolloutResult;
using engines::TokenLogprob;

// What the package tinker takes for "no token here".
constexpr TokenLogprob kNoToken{0, -99999.0F};

template <class T>
std::string packed(std::span<const T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

// Writes rows of `k` alternatives. Rows before `first` are empty.
void write_top(std::span<const TokenLogprob> top, std::size_t k, std::size_t rows,
               std::size_t first, tinker_wire::TopkLogprobs& out) {
  std::vector<std::int32_t> ids(rows * k, kNoToken.token);
  std::vector<float> logprobs(rows * k, kNoToken.logprob);
  const std::size_t written = rows > first ? rows - first : 0;
  const std::size_t width =
      written == 0 ? 0 : top.size() / written;  // below k in tiny vocabularies
  for (std::size_t row = 0; row < written; ++row) {
    for (std::size_t i = 0; i < std::min(width, k); ++i) {
      ids[(first + row) * k + i] = top[row * width + i].token;
      logprobs[(first + row) * k + i] = top[row * width + i].logprob;
    }
  }
  out.set_token_ids(packed<std::int32_t>(ids));
  out.set_logprobs(packed<float>(logprobs));
  out.set_k(static_cast<std::uint32_t>(k));
  out.set_length(static_cast<std::uint32_t>(rows));
}

void write_prompt(const SampleCall& call, const RolloutResult& result,
                  tinker_wire::SampleResponse& out) {
  const std::size_t length = call.settings.prompt_ids.size();
  const std::size_t skipped = length - call.prompt_logprobs_last_n.value_or(length - 1);
  if (call.settings.prompt_logprobs) {
    std::vector<float> logprobs(length, std::numeric_limits<float>::quiet_NaN());
    for (std::size_t t = skipped; t < length && t - 1 < result.prompt_logprobs.size(); ++t) {
      logprobs[t] = result.prompt_logprobs[t - 1];
    }
    out.set_prompt_logprobs(packed<float>(logprobs));
  }
  if (call.settings.prompt_top_logprobs > 0) {
    std::span<const TokenLogprob> top = result.prompt_top_logprobs;
    const std::size_t width = length > 1 ? top.size() / (length - 1) : 0;
    write_top(top.subspan(std::min(top.size(), (skipped - 1) * width)),
              static_cast<std::size_t>(call.settings.prompt_top_logprobs), length, skipped,
              *out.mutable_topk_prompt_logprobs());
  }
}

}  // namespace

std::string forward_result(std::span<const std::vector<float>> logprobs, double loss) {
  tinker_wire::ForwardBackwardOutput out;
  out.set_loss_fn_output_type("ArrayRecord");
  (*out.mutable_metrics())["loss:sum"] = loss;
  tinker_wire::ArrayRecord& record = *out.add_loss_fn_outputs();
  record.set_type_tag("ArrayRecord");
  record.set_num_datums(static_cast<std::int64_t>(logprobs.size()));
  tinker_wire::BatchedTensor& tensor = (*record.mutable_fields())["logprobs"];
  tensor.set_dtype(tinker_wire::DTYPE_FLOAT32);
  std::vector<std::int64_t> offsets = {0};
  for (const std::vector<float>& row : logprobs) {
    const auto positions = std::span(row).subspan(std::min<std::size_t>(row.size(), 1));
    tensor.mutable_data()->append(packed<float>(positions));
    offsets.push_back(static_cast<std::int64_t>(tensor.data().size()));
  }
  tensor.set_offsets(packed<std::int64_t>(offsets));
  return out.SerializeAsString();
}

std::string sample_result(const SampleCall& call, std::span<const RolloutResult> results) {
  tinker_wire::SampleResponse out;
  for (const RolloutResult& result : results) {
    tinker_wire::SampledSequence& sequence = *out.add_sequences();
    sequence.set_stop_reason(result.finish_reason == engines::FinishReason::kStop
                                 ? tinker_wire::STOP_REASON_STOP
                                 : tinker_wire::STOP_REASON_LENGTH);
    sequence.set_tokens(packed<std::int32_t>(result.response_ids));
    sequence.set_logprobs(packed<float>(result.behavior_logprobs));
    if (call.settings.top_logprobs > 0) {
      write_top(result.top_logprobs, static_cast<std::size_t>(call.settings.top_logprobs),
                result.response_ids.size(), 0, *sequence.mutable_topk_sampled_logprobs());
    }
  }
  if (!results.empty()) {
    write_prompt(call, results[0], out);
    out.set_prompt_cache_hit_tokens(static_cast<std::int32_t>(results[0].cached_tokens));
  }
  return out.SerializeAsString();
}

}  // namespace tidemill::actors::tinker
