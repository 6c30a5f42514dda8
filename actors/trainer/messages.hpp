// SPDX-License-Identifier: Apache-2.0
// How a training run ended.
#pragma once

#include <cstdint>
#include <string>

#include "base/ids.hpp"
#include "engines/snapshot.hpp"

namespace tidemill::actors {

/// Why a trainer stopped training.
enum class RunEnd : std::uint8_t {
  kSteps,     // all steps are done
  kData,      // the data ended first
  kStopped,   // the trainer was asked to stop
  kNoSignal,  // too many groups in a row were filtered: their rewards give no signal
  kPlateau,   // too many evaluations in a row were no better than an earlier one
};

/// The result of a run, which the trainer sends before it ends.
struct RunSummary {
  RunEnd end = RunEnd::kSteps;
  std::uint64_t steps = 0;
  engines::Snapshot weights;  // to be exported
  std::string reason;         // one line, for `kNoSignal` and `kPlateau`; else empty
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, RunSummary& x) {
  return f(x.end, x.steps, x.weights, x.reason);
}

}  // namespace tidemill::actors
