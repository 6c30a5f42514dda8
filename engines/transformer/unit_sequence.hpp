// SPDX-License-Identifier: Apache-2.0
// Device work that is divided into units, so that other work can run between any two of them.
#pragma once

#include "engines/step.hpp"

namespace tidemill::engines {

/// Work that runs as a fixed sequence of units of a few operations each. Its result does not depend
/// on how long the work pauses between two units, nor on what runs in the meantime.
///
/// Threads: one call at a time, on the thread that uses the `Ops`.
class UnitSequence {
public:
  UnitSequence() = default;
  UnitSequence(const UnitSequence&) = delete;
  UnitSequence& operator=(const UnitSequence&) = delete;
  virtual ~UnitSequence() = default;

  /// Returns whether all units have run.
  [[nodiscard]] virtual bool done() const = 0;
  /// Runs the next unit. Requires that `done` is false.
  virtual void run() = 0;
  /// Describes the next unit; its stage is that of the sequence. Requires that `done` is false.
  [[nodiscard]] virtual UnitKind next() const { return {}; }
};

/// Runs all units that are left.
inline void run_all(UnitSequence& units) {
  while (!units.done()) {
    units.run();
  }
}

}  // namespace tidemill::engines
