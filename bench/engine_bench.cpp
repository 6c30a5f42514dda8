// SPDX-License-Identifier: Apache-2.0
#include "bench/engine_bench.hpp"

#include <algorithm>
#include <iterator>

#include "bench/figure_spec.hpp"
#include "bench/foreign_load.hpp"

namespace tidemill::bench {
namespace {

constexpr double kMaxForeignLoad = 0.05;
constexpr double kPeakSeconds = 0.4;

std::vector<FigureSpec> all_figures() {
  std::vector<FigureSpec> figures;
  for (const auto topic :
       {generation_figures, training_figures, memory_figures, grpo_figures, adapter_figures,
        sharing_figures, sampling_figures, constraint_figures}) {
    std::ranges::move(topic(), std::back_inserter(figures));
  }
  return figures;
}

// One repetition, and the load from other processes during it.
struct Repetition {
  double value = 0.0;
  double foreign_load = 0.0;
};

// Measures a figure until `count` repetitions were undisturbed, or too many were disturbed. Returns
// the median.
Result<Repetition> undisturbed_median(const FigureSpec& spec, int count, BenchModel& bench,
                                      StepProfile& profile) {
  const int most_disturbed = bench.options().patience * count;
  std::vector<Repetition> repetitions;
  for (int disturbed = 0; std::ssize(repetitions) < count;) {
    const StepProfile before = profile;
    const ForeignLoad watch;
    TIDEMILL_ASSIGN_OR_RETURN(const double value, spec.run(bench));
    const double load = watch.share();
    if (load > kMaxForeignLoad && disturbed < most_disturbed) {
      ++disturbed;
      profile = before;
      continue;
    }
    repetitions.push_back({value, load});
  }
  std::ranges::sort(repetitions, {}, &Repetition::value);
  return repetitions[repetitions.size() / 2];
}

// Measures the peaks of the machine and keeps the best values. On a shared machine they change from
// second to second.
Status raise_peaks(const EngineBenchOptions& options, engines::MachinePeaks& peaks) {
  engines::Workers workers(options.threads);
  TIDEMILL_ASSIGN_OR_RETURN(const engines::MachinePeaks now,
                            engines::measure_peaks(workers, kPeakSeconds));
  peaks = {std::max(peaks.f32_flops, now.f32_flops), std::max(peaks.bf16_flops, now.bf16_flops),
           std::max(peaks.bytes_per_second, now.bytes_per_second)};
  return {};
}

Result<Figure> measure(const FigureSpec& spec, const EngineBenchOptions& options,
                       StepProfile& profile) {
  TIDEMILL_RETURN_IF_ERROR(raise_peaks(options, profile.peaks));
  BenchModel bench(options, profile);
  if (spec.runs_in == RunsIn::kThisProcess) {
    TIDEMILL_RETURN_IF_ERROR(bench.open(spec.model));
  }
  const int count = options.repetitions > 0 ? options.repetitions : spec.repetitions;
  if (count > 1) {
    TIDEMILL_RETURN_IF_ERROR(spec.run(bench).status());  // warm-up: touches pages, grows buffers
  }
  profile.ops = {};
  profile.seconds = 0.0;
  TIDEMILL_ASSIGN_OR_RETURN(const Repetition median,
                            undisturbed_median(spec, count, bench, profile));
  Figure figure{spec.name, median.value,    spec.unit,           spec.peer,
                0.0,       options.threads, median.foreign_load, {}};
  if (spec.runs_in != RunsIn::kOwnProcess) {
    TIDEMILL_RETURN_IF_ERROR(raise_peaks(options, profile.peaks));
  }
  const StepProfile own = profile;
  if (spec.annotate != nullptr) {
    TIDEMILL_RETURN_IF_ERROR(spec.annotate(bench, figure, spec));
  }
  figure.notes = bench.notes();
  TIDEMILL_ASSIGN_OR_RETURN(figure.peer_value, spec.peer_value(bench, profile.peaks, spec));
  profile = own;
  return figure;
}

}  // namespace

double Figure::ratio() const noexcept {
  if (value <= 0.0 || peer_value <= 0.0) {
    return 0.0;
  }
  return unit == "s" ? peer_value / value : value / peer_value;
}

std::vector<std::string> engine_figures() {
  std::vector<std::string> names;
  for (const FigureSpec& spec : all_figures()) {
    names.emplace_back(spec.name);
  }
  return names;
}

Status run_engine_bench(const EngineBenchOptions& options,
                        const std::function<void(const Figure&)>& report,
                        const std::function<void(const Figure&, const StepProfile&)>& profiled) {
  const std::vector<FigureSpec> known = all_figures();
  for (const std::string& name : options.figures) {
    if (std::ranges::find(known, name, &FigureSpec::name) == known.end()) {
      return invalid_argument("--figure: there is no figure \"" + name + "\"");
    }
  }
  for (const FigureSpec& spec : known) {
    const bool named = std::ranges::find(options.figures, spec.name) != options.figures.end();
    if (!named && !(options.figures.empty() && spec.selection == Selection::kByDefault)) {
      continue;
    }
    StepProfile profile;
    auto figure = measure(spec, options, profile);
    if (!figure.ok()) {
      return figure.status().with_context(spec.name);
    }
    report(figure.value());
    if (profiled) {
      profiled(figure.value(), profile);
    }
  }
  return {};
}

}  // namespace tidemill::bench
