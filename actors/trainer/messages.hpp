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
  kStopped,   // somebody asked for it
  kNoSignal,  // group after group was filtered: there is nothing left to learn from
  kPlateau,   // evaluation after evaluation was no better than one before
};

/// The last words of a trainer.
struct RunSummary {
  RunEnd end = RunEnd::kSteps;
  std::uint64_t steps = 0;
  engines::Snapshot weights;  // those to be exported
  std::string reason;  // in one line, when the run ended before its steps without being asked to
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, RunSummary& x) {
  return f(x.end, x.steps, x.weights, x.reason);
}

}  // namespace tidemill::actors
