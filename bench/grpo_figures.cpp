// SPDX-License-Identifier: Apache-2.0
// The figures of reinforcement learning: step time, start time and memory of whole runs.
#include <algorithm>

#include "bench/figure_spec.hpp"
#include "bench/grpo_run.hpp"
#include "bench/memory_notes.hpp"
#include "bench/step_cost.hpp"
#include "bench/times.hpp"

namespace tidemill::bench {
namespace {

constexpr const char* kPreset = "3.7m";
constexpr std::int64_t kGrpoSteps = 6;
constexpr GrpoShape kShort;
// A step of a real model, whose first step is not counted.
constexpr GrpoShape kLong{4, 8, 64, 256};
constexpr const char* kLongPreset = "qwen3-0.6b";
constexpr std::int64_t kLongSteps = 3;

// The files of presets are in f32, so that both types start from the same ones.
Result<GrpoRun> short_run(BenchModel& bench, DType compute, std::int64_t steps) {
  return run_grpo(bench.options(), kShort, {kPreset, compute, DType::kF32, steps});
}

Result<double> step_seconds(BenchModel& bench, DType compute) {
  TIDEMILL_ASSIGN_OR_RETURN(const GrpoRun run, short_run(bench, compute, kGrpoSteps));
  return median(run.step_seconds);
}

Result<double> step_f32(BenchModel& bench) {
  return step_seconds(bench, DType::kF32);
}
Result<double> step_bf16(BenchModel& bench) {
  return step_seconds(bench, DType::kBF16);
}

Result<double> start(BenchModel& bench) {
  TIDEMILL_ASSIGN_OR_RETURN(const GrpoRun run, short_run(bench, DType::kBF16, 1));
  return run.start_seconds;
}

Result<double> resident(BenchModel& bench) {
  TIDEMILL_ASSIGN_OR_RETURN(const GrpoRun run, short_run(bench, DType::kBF16, kGrpoSteps));
  return run.peak_bytes;
}

template <DType kCompute>
Result<double> long_run_step(BenchModel& bench) {
  TIDEMILL_ASSIGN_OR_RETURN(
      const GrpoRun run,
      run_grpo(bench.options(), kLong,
               {kLongPreset, kCompute, engines::cache_type(kCompute), kLongSteps}));
  bench.notes() = peak_notes(run.peak_bytes, run.expected_bytes);
  return median(run.step_seconds);
}

// Returns the time of a step of `shape` at the peak of the machine's matrix products.
//
// Rollout and training compute each prompt once for its group, and all tokens of a response except
// the last. Rollout needs 2N FLOP per token. Training needs 2N for input gradients; its forward
// pass reuses the results of rollout, except for the first sample, whose cost is not counted.
// Training computes the last token of a prompt once for each sample. The head is computed only for
// response tokens, forward and backward. The adapter's own products and everything else are not
// counted.
double seconds_at_peak(const engines::ModelConfig& config, const GrpoShape& shape, double peak) {
  const StepCost cost(config);
  const auto prompt = static_cast<double>(shape.prompt_tokens);
  const auto response = static_cast<double>(shape.new_tokens);
  const auto samples = static_cast<double>(shape.prompts * shape.group_size);
  const auto prompts = static_cast<double>(shape.prompts);
  const auto attention = [&](double passes) {
    return prompts * cost.attention(prompt, passes) +
           samples * (cost.attention(prompt + response, passes) - cost.attention(prompt, passes));
  };
  const double rollout = attention(2.0) + prompts * prompt * cost.layers() +
                         samples * ((response - 1.0) * cost.layers() + response * cost.head());
  const double training = attention(4.0) + prompts * (prompt - 1.0) * cost.layers() +
                          samples * response * (cost.layers() + 2.0 * cost.head());
  return (rollout + training) / peak;
}

template <const GrpoShape& kShape>
Result<double> at_matmul_peak(BenchModel& bench, const engines::MachinePeaks& peaks,
                              const FigureSpec& spec) {
  TIDEMILL_ASSIGN_OR_RETURN(
      const engines::ModelFiles model,
      bench.options().model(engines::cache_type(spec.model.compute), spec.model.preset));
  return seconds_at_peak(model.config, kShape, peak_flops(peaks, spec.model.compute));
}

Result<double> later_step(BenchModel& bench, const engines::MachinePeaks& /*peaks*/,
                          const FigureSpec& /*spec*/) {
  return step_bf16(bench);
}

Result<double> weight_bytes(BenchModel& bench, const engines::MachinePeaks& /*peaks*/,
                            const FigureSpec& spec) {
  TIDEMILL_ASSIGN_OR_RETURN(const engines::ModelFiles model,
                            bench.options().model(DType::kF32, kPreset));
  return StepCost(model.config).weight_bytes(spec.model.compute);
}

BenchModelOptions adapter_over(DType compute, const char* preset) {
  return {compute, Training::kAdapter, 1, true, preset};
}

template <DType kCompute>
FigureSpec long_figure(const char* name) {
  FigureSpec spec{name,
                  adapter_over(kCompute, kLongPreset),
                  "s",
                  kMatmulPeak,
                  long_run_step<kCompute>,
                  at_matmul_peak<kLong>,
                  RunsIn::kOwnProcess};
  spec.selection = Selection::kByName;
  spec.repetitions = 1;
  return spec;
}

}  // namespace

std::vector<FigureSpec> grpo_figures() {
  const BenchModelOptions f32 = adapter_over(DType::kF32, kPreset);
  const BenchModelOptions bf16 = adapter_over(DType::kBF16, kPreset);
  const auto at_peak = at_matmul_peak<kShort>;
  return {
      {"grpo_step_f32", f32, "s", kMatmulPeak, step_f32, at_peak, RunsIn::kOwnProcess},
      {"grpo_step_bf16", bf16, "s", kMatmulPeak, step_bf16, at_peak, RunsIn::kOwnProcess},
      {"grpo_start", bf16, "s", "a later step", start, later_step, RunsIn::kOwnProcess},
      {"grpo_rss", bf16, "bytes", "weights", resident, weight_bytes, RunsIn::kOwnProcess},
      long_figure<DType::kF32>("grpo_step_4x8_f32"),
      long_figure<DType::kBF16>("grpo_step_4x8_bf16"),
  };
}

}  // namespace tidemill::bench
