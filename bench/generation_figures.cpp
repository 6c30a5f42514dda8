// SPDX-License-Identifier: Apache-2.0
// The figures of generation.
#include <algorithm>
#include <string>

#include "bench/figure_spec.hpp"
#include "bench/step_cost.hpp"

namespace tidemill::bench {
namespace {

constexpr const char* kReads = "memory bandwidth";

Result<double> decode_few(BenchModel& bench) {
  return bench.decode(48);
}
Result<double> decode_many(BenchModel& bench) {
  return bench.decode(12);
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

}  // namespace

std::vector<FigureSpec> generation_figures() {
  const char* const unit = kTokensPerSecond;
  const char* const peak = kMatmulPeak;
  return {
      {"decode_b1_f32", generating(kF32), unit, kReads, decode_few, read_limit},
      {"decode_b1_bf16", generating(kBF16), unit, kReads, decode_few, read_limit},
      {"decode_b1_int8", generating(kInt8), unit, kReads, decode_few, read_limit},
      {"prefill_512_f32", generating(kF32), unit, peak, prefill, prefill_limit},
      {"prefill_512_bf16", generating(kBF16), unit, peak, prefill, prefill_limit},
      {"prefill_512_int8", generating(kInt8), unit, "matmul peak in bf16", prefill, prefill_limit},
      {"decode_16_bf16", generating(kBF16, 16), unit, peak, decode_many, decode_limit},
      {"decode_64_bf16", generating(kBF16, 64), unit, peak, decode_many, decode_limit},
      {"group_rollout", generating(kBF16, 8), unit, "without sharing", group,
       group_without_sharing},
  };
}

}  // namespace tidemill::bench
