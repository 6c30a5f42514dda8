// SPDX-License-Identifier: Apache-2.0
// Work on a device that is divided into units, so that other work can run between any two of them.
#pragma once

namespace tidemill::engines {

/// Work that runs unit by unit: a few operations each, in a fixed order. How long it stops between
/// two units, and what runs meanwhile, changes no bit of its result.
///
/// Threads: one call at a time, on the thread that may use the operations.
class Units {
public:
  Units() = default;
  Units(const Units&) = delete;
  Units& operator=(const Units&) = delete;
  virtual ~Units() = default;

  /// Returns whether all units have run.
  [[nodiscard]] virtual bool done() const = 0;
  /// Runs the next unit. Requires that `done` is false.
  virtual void run() = 0;
};

/// Runs all units that are left.
inline void run_all(Units& units) {
  while (!units.done()) {
    units.run();
  }
}

}  // namespace tidemill::engines
