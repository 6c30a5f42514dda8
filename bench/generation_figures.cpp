// SPDX-License-Identifier: Apache-2.0
// The figures of generation.
#include <algorithm>
#include <string>

#include "bench/figure_spec.hpp"
#include "bench/memory_notes.hpp"
#include "bench/step_cost.hpp"

namespace tidemill::bench {
namespace {

constexpr const char* kReads = "memory bandwidth";

constexpr std::int64_t kFewSteps = 48;
constexpr std::int64_t kManySteps = 12;

Result<double> decode_few(BenchModel& bench) {
  return bench.decode(kFewSteps);
}
Result<double> decode_many(BenchModel& bench) {
  return bench.decode(kManySteps);
}
Result<double> rollout(BenchModel& bench) {
  return bench.rollout();
}
Result<double> prefill(BenchModel& bench) {
  return bench.prefill(BenchModel::kTrainTokens);
}

Result<double> read_limit(BenchModel& bench, const engines::MachinePeaks& peaks,
                          const FigureSpec& spec) {
  return peaks.bytes_per_second / StepCost(bench.config()).weight_bytes(spec.model.compute);
}

Result<double> decode_limit(BenchModel& bench, const engines::MachinePeaks& peaks,
                            const FigureSpec& spec) {
  const StepCost cost(bench.config());
  return peak_flops(peaks, spec.model.compute) / (cost.layers() + cost.head());
}

Result<double> prefill_limit(BenchModel& bench, const engines::MachinePeaks& peaks,
                             const FigureSpec& spec) {
  const StepCost cost(bench.config());
  const double tokens = BenchModel::kTrainTokens;
  return tokens * peak_flops(peaks, spec.model.compute) / cost.prompt(tokens);
}

// The time of the products, of which the last token of a response needs none.
Result<double> rollout_limit(BenchModel& bench, const engines::MachinePeaks& peaks,
                             const FigureSpec& spec) {
  const StepCost cost(bench.config());
  const auto prompt = static_cast<double>(spec.model.prompt_tokens);
  const auto response = static_cast<double>(spec.model.new_tokens);
  const double flops = cost.prompt(prompt) + (response - 1.0) * (cost.layers() + cost.head()) +
                       cost.attention(prompt + response - 1.0, 2.0) - cost.attention(prompt, 2.0);
  return response * peak_flops(peaks, spec.model.compute) / flops;
}

// Notes the share of sampling in the time of the iterations, and the memory.
Status note_sampling(BenchModel& bench, const Figure& figure, const FigureSpec& spec) {
  const StepProfile& profile = bench.profile();
  const auto found = profile.ops.records.find("sample");
  const double seconds = found == profile.ops.records.end() ? 0.0 : found->second.seconds;
  bench.notes().push_back({"sampling_share", seconds / profile.seconds});
  return note_peak(bench, figure, spec);
}

constexpr std::int64_t kGroupPrompt = 256;
constexpr std::int64_t kGroupNewTokens = 32;

Result<double> run_group(BenchModel& bench, std::int64_t expected_prompt_tokens) {
  std::int64_t prompt_tokens = 0;
  auto speed = bench.group(kGroupPrompt, kGroupNewTokens, prompt_tokens);
  if (speed.ok() && prompt_tokens != expected_prompt_tokens) {
    return Status(Errc::kInternal, std::to_string(prompt_tokens) + " prompt tokens computed, " +
                                       std::to_string(expected_prompt_tokens) + " expected");
  }
  return speed;
}

Result<double> group(BenchModel& bench) {
  return run_group(bench, kGroupPrompt);
}

Result<double> group_without_sharing(BenchModel& bench, const engines::MachinePeaks& /*peaks*/,
                                     const FigureSpec& spec) {
  BenchModelOptions apart = spec.model;
  apart.share_prefixes = false;
  TIDEMILL_RETURN_IF_ERROR(bench.open(apart));
  double best = 0.0;
  for (int i = 0; i < 3; ++i) {
    TIDEMILL_ASSIGN_OR_RETURN(const double speed,
                              run_group(bench, kGroupPrompt * spec.model.batch));
    best = std::max(best, speed);
  }
  return best;
}

constexpr auto kF32 = DType::kF32;
constexpr auto kBF16 = DType::kBF16;
constexpr auto kInt8 = DType::kBlockI8;

BenchModelOptions generating(DType compute, std::int64_t batch = 1) {
  return {compute, Training::kNone, batch};
}

FigureSpec decode(const char* name, DType compute, std::int64_t batch = 1) {
  FigureSpec spec{name,      generating(compute, batch), kTokensPerSecond, kReads, decode_few,
                  read_limit};
  if (batch > 1) {
    spec.peer = kMatmulPeak;
    spec.run = decode_many;
    spec.peer_value = decode_limit;
  }
  spec.model.prompt_tokens = BenchModel::kPromptTokens;
  spec.model.new_tokens = (batch > 1 ? kManySteps : kFewSteps) + 2;
  spec.annotate = note_peak;
  return spec;
}

// 32 responses of 256 tokens, sampled as for reinforcement learning.
FigureSpec rollout_32(const char* name, DType compute) {
  FigureSpec spec{name,         generating(compute, 32), kTokensPerSecond, kMatmulPeak, rollout,
                  rollout_limit};
  spec.model.preset = "qwen3-0.6b";
  spec.model.prompt_tokens = 64;
  spec.model.new_tokens = 256;
  spec.model.sampling.temperature = 1.0F;
  spec.model.sampling.top_p = 0.95F;
  spec.selection = Selection::kByName;
  spec.repetitions = 3;
  spec.annotate = note_sampling;
  return spec;
}

}  // namespace

std::vector<FigureSpec> generation_figures() {
  const char* const unit = kTokensPerSecond;
  const char* const peak = kMatmulPeak;
  return {
      decode("decode_b1_f32", kF32),
      decode("decode_b1_bf16", kBF16),
      decode("decode_b1_int8", kInt8),
      {"prefill_512_f32", generating(kF32), unit, peak, prefill, prefill_limit},
      {"prefill_512_bf16", generating(kBF16), unit, peak, prefill, prefill_limit},
      {"prefill_512_int8", generating(kInt8), unit, "matmul peak in bf16", prefill, prefill_limit},
      decode("decode_16_bf16", kBF16, 16),
      decode("decode_64_bf16", kBF16, 64),
      rollout_32("rollout_32_bf16", kBF16),
      {"group_rollout", generating(kBF16, 8), unit, "without sharing", group,
       group_without_sharing},
  };
}

}  // namespace tidemill::bench
