// SPDX-License-Identifier: Apache-2.0
// The figures of reinforcement learning: steps, start and memory of whole runs.
#include <algorithm>

#include "launcher/bench/figure_spec.hpp"
#include "launcher/bench/grpo_run.hpp"
#include "launcher/bench/step_cost.hpp"

namespace tidemill::launcher {
namespace {

constexpr const char* kPreset = "3.7m";
constexpr std::int64_t kSteps = 6;

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

Result<double> step_seconds(BenchModel& bench, DType compute) {
  TIDEMILL_ASSIGN_OR_RETURN(const GrpoRun run,
                            run_grpo(bench.options(), {}, compute, kSteps, kPreset));
  return median(run.step_seconds);
}

Result<double> step_f32(BenchModel& bench) {
  return step_seconds(bench, DType::kF32);
}
Result<double> step_bf16(BenchModel& bench) {
  return step_seconds(bench, DType::kBF16);
}

Result<double> start(BenchModel& bench) {
  TIDEMILL_ASSIGN_OR_RETURN(const GrpoRun run,
                            run_grpo(bench.options(), {}, DType::kBF16, 1, kPreset));
  return run.start_seconds;
}

Result<double> resident(BenchModel& bench) {
  TIDEMILL_ASSIGN_OR_RETURN(const GrpoRun run,
                            run_grpo(bench.options(), {}, DType::kBF16, kSteps, kPreset));
  return run.peak_bytes;
}

// Rollout and training compute a prompt once for its group, and of each answer all tokens but the
// last: 2N in rollout, and 2N for input gradients in training, whose forward is taken from rollout
// (all but the first sample's, which is not counted). Training takes the last token of a prompt
// once for each sample. The head serves the tokens of answers alone, in both directions. The
// adapter's own products and all else are not counted.
Result<double> at_matmul_peak(BenchModel& bench, const engines::MachinePeaks& peaks,
                              const FigureSpec& spec) {
  TIDEMILL_ASSIGN_OR_RETURN(const engines::ModelFiles model,
                            bench.options().model(DType::kF32, kPreset));
  const StepCost cost(model.config);
  const GrpoShape shape;
  const auto prompt = static_cast<double>(shape.prompt_tokens);
  const auto answer = static_cast<double>(shape.new_tokens);
  const auto samples = static_cast<double>(shape.prompts * shape.group_size);
  const auto prompts = static_cast<double>(shape.prompts);
  const auto attention = [&](double passes) {
    return prompts * cost.attention(prompt, passes) +
           samples * (cost.attention(prompt + answer, passes) - cost.attention(prompt, passes));
  };
  const double rollout = attention(2.0) + prompts * prompt * cost.layers() +
                         samples * ((answer - 1.0) * cost.layers() + answer * cost.head());
  const double training = attention(4.0) + prompts * (prompt - 1.0) * cost.layers() +
                          samples * answer * (cost.layers() + 2.0 * cost.head());
  return (rollout + training) / peak_flops(peaks, spec.model.compute);
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

}  // namespace

std::vector<FigureSpec> grpo_figures() {
  const BenchModelOptions f32{DType::kF32, Training::kAdapter, 1};
  const BenchModelOptions bf16{DType::kBF16, Training::kAdapter, 1};
  return {
      {"grpo_step_f32", f32, "s", kMatmulPeak, step_f32, at_matmul_peak, Place::kOwnProcess},
      {"grpo_step_bf16", bf16, "s", kMatmulPeak, step_bf16, at_matmul_peak, Place::kOwnProcess},
      {"grpo_start", bf16, "s", "a later step", start, later_step, Place::kOwnProcess},
      {"grpo_rss", bf16, "bytes", "weights", resident, weight_bytes, Place::kOwnProcess},
  };
}

}  // namespace tidemill::launcher
