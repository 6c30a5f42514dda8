// SPDX-License-Identifier: Apache-2.0
// The figures of training: one optimizer step.
#include <algorithm>
#include <iterator>

#include "bench/figure_spec.hpp"
#include "bench/memory_notes.hpp"
#include "bench/step_cost.hpp"
#include "workflows/memory_plan.hpp"

namespace tidemill::bench {
namespace {

Result<double> train(BenchModel& bench) {
  return bench.train();
}

// A token needs 2N FLOP forward, 2N for input gradients, and 2N for gradients of all weights if
// these are trained. Attention has two products forward and four backward. What the backward pass
// computes again does not count.
Result<double> train_limit(BenchModel& bench, const engines::MachinePeaks& peaks,
                           const FigureSpec& spec) {
  const StepCost cost(bench.config());
  const auto tokens = static_cast<double>(spec.model.train_tokens);
  const double passes = spec.model.training == Training::kAll ? 3.0 : 2.0;
  const double flops =
      passes * tokens * (cost.layers() + cost.head()) + cost.attention(tokens, 6.0);
  return tokens * peak_flops(peaks, spec.model.compute) / flops;
}

Result<double> train_unit(BenchModel& bench) {
  return bench.train_unit();
}

// What another request may wait for.
Result<double> unit_limit(BenchModel& /*bench*/, const engines::MachinePeaks& /*peaks*/,
                          const FigureSpec& /*spec*/) {
  return 5.0;
}

void add_notes(std::vector<FigureNote> notes, BenchModel& bench) {
  std::ranges::move(notes, std::back_inserter(bench.notes()));
}

Status note_base(BenchModel& bench, const Figure& figure, const FigureSpec& spec) {
  add_notes(base_notes(bench.config(), spec.model.compute), bench);
  return note_peak(bench, figure, spec);
}

// Tells how much the longest unit exceeds the figure. It includes the interruptions by other work.
Status note_longest(BenchModel& bench, const Figure& /*figure*/, const FigureSpec& /*spec*/) {
  add_notes({{"longest_ms", bench.longest_unit()}}, bench);
  return {};
}

// Compares the rate with that of sequences of 512 tokens, as in lora_step_*_b1.
Status note_short_rate(BenchModel& bench, const Figure& figure, const FigureSpec& spec) {
  TIDEMILL_RETURN_IF_ERROR(note_peak(bench, figure, spec));
  BenchModelOptions model = spec.model;
  model.train_tokens = BenchModel::kTrainTokens;
  model.recompute = engines::Recompute::kNone;
  model.window_tokens = 0;
  TIDEMILL_RETURN_IF_ERROR(bench.open(model));
  const int count = bench.options().repetitions == 1 ? 1 : 3;
  std::vector<double> rates;
  if (count > 1) {
    TIDEMILL_RETURN_IF_ERROR(bench.train().status());  // warm-up
  }
  for (int i = 0; i < count; ++i) {
    TIDEMILL_ASSIGN_OR_RETURN(const double rate, bench.train());
    rates.push_back(rate);
  }
  std::ranges::sort(rates);
  const double rate = rates[rates.size() / 2];
  add_notes({{"tokens_per_s_at_512", rate}, {"rate_of_512", figure.value / rate}}, bench);
  return {};
}

FigureSpec step(const char* name, DType compute, Training training, std::int64_t batch,
                const char* preset = "197m") {
  FigureSpec spec{
      name,       {compute, training, batch, true, preset}, kTokensPerSecond, kMatmulPeak, train,
      train_limit};
  spec.annotate = note_peak;
  return spec;
}

// A step on one long sequence, in the windows in which a run trains on it.
FigureSpec long_step(const char* name, DType compute, std::int64_t tokens,
                     engines::Recompute recompute = engines::Recompute::kNone) {
  FigureSpec spec = step(name, compute, Training::kAdapter, 1, "qwen3-0.6b");
  spec.model.train_tokens = tokens;
  spec.model.window_tokens = workflows::window_for(tokens);
  spec.model.recompute = recompute;
  spec.selection = Selection::kByName;
  spec.repetitions = 3;
  spec.annotate = note_short_rate;
  return spec;
}

FigureSpec step_over(const char* name, DType base) {
  FigureSpec spec = long_step(name, base, 4096, engines::Recompute::kCheap);
  spec.model.preset = "qwen3-1.7b";
  spec.annotate = note_base;
  return spec;
}

// The cost of dividing a step into units: the rate of a step in windows.
FigureSpec step_in_windows(const char* name, DType compute, std::int64_t window_tokens) {
  FigureSpec spec = step(name, compute, Training::kAdapter, 1);
  spec.model.window_tokens = window_tokens;
  return spec;
}

FigureSpec unit(const char* name, DType compute, std::int64_t window_tokens) {
  const BenchModelOptions model = step_in_windows(name, compute, window_tokens).model;
  FigureSpec spec{name, model, "ms", "5 ms", train_unit, unit_limit};
  spec.annotate = note_longest;
  return spec;
}

}  // namespace

std::vector<FigureSpec> training_figures() {
  return {
      step("lora_step_f32_b1", DType::kF32, Training::kAdapter, 1),
      step("lora_step_f32_b4", DType::kF32, Training::kAdapter, 4),
      step("lora_step_bf16_b1", DType::kBF16, Training::kAdapter, 1),
      step("lora_step_bf16_b4", DType::kBF16, Training::kAdapter, 4),
      step_in_windows("lora_step_f32_w64", DType::kF32, 64),
      step_in_windows("lora_step_bf16_w64", DType::kBF16, 64),
      step_in_windows("lora_step_f32_w16", DType::kF32, 16),
      step_in_windows("lora_step_bf16_w16", DType::kBF16, 16),
      step_in_windows("lora_step_bf16_w128", DType::kBF16, 128),
      step_in_windows("lora_step_bf16_w256", DType::kBF16, 256),
      unit("lora_unit_bf16_w128", DType::kBF16, 128),
      unit("lora_unit_bf16_w256", DType::kBF16, 256),
      unit("lora_unit_f32_w64", DType::kF32, 64),
      unit("lora_unit_bf16_w64", DType::kBF16, 64),
      unit("lora_unit_f32_w16", DType::kF32, 16),
      unit("lora_unit_bf16_w16", DType::kBF16, 16),
      step("full_step_f32", DType::kF32, Training::kAll, 1, "15m"),
      long_step("lora_step_f32_t2048", DType::kF32, 2048),
      long_step("lora_step_bf16_t2048", DType::kBF16, 2048),
      long_step("lora_step_f32_t8192_layer", DType::kF32, 8192, engines::Recompute::kLayer),
      long_step("lora_step_bf16_t8192_cheap", DType::kBF16, 8192, engines::Recompute::kCheap),
      long_step("lora_step_bf16_t8192_layer", DType::kBF16, 8192, engines::Recompute::kLayer),
      step_over("lora_step_bf16_t4096", DType::kBF16),
      step_over("lora_step_nf4_t4096", DType::kNf4),
  };
}

}  // namespace tidemill::bench
