// SPDX-License-Identifier: Apache-2.0
// Notes about memory that are reported with a figure.
#pragma once

#include "bench/figure_spec.hpp"

namespace tidemill::bench {

/// Returns the notes "peak_bytes", "plan_bytes" (what was expected before the work began) and
/// "peak_of_plan", their ratio.
[[nodiscard]] std::vector<FigureNote> peak_notes(double peak_bytes, double plan_bytes);

/// Adds these notes about the model of `bench`.
[[nodiscard]] Status note_peak(BenchModel& bench, const Figure& figure, const FigureSpec& spec);

/// Returns the notes "base_bytes", the memory of a frozen base of `config` that is laid out for
/// products in `compute`, and "base_of_bf16", its ratio to a base in bf16. Both include the
/// embedding table and the head, with weights in a mapped file.
[[nodiscard]] std::vector<FigureNote> base_notes(const engines::ModelConfig& config, DType compute);

}  // namespace tidemill::bench
