// SPDX-License-Identifier: Apache-2.0
// Stops a run at a defined point in the middle of a step.
#pragma once

#include <cstdint>
#include <string>

#include "tests/process/run_folder.hpp"

namespace tidemill::test {

/// Controls reward_program.py, which the runs of `gated_config` use, through files in their folder.
class RewardGate {
public:
  /// Borrows `folder` for its lifetime.
  explicit RewardGate(const RunFolder& folder);
  RewardGate(const RewardGate&) = delete;
  RewardGate& operator=(const RewardGate&) = delete;
  ~RewardGate();

  /// Sets the misbehavior of programs that are started from now on. `behavior` is a line as
  /// documented in reward_program.py.
  void set_behavior(const std::string& behavior) const;
  /// Lets programs that are started from now on behave correctly.
  void clear_behavior() const;

  /// Waits until a program has reached its gate. Returns false if that hangs.
  [[nodiscard]] bool wait_reached() const;
  /// Lets the program continue.
  void open() const;

private:
  const RunFolder& folder_;
  // FIFOs, opened for reading and writing so that opening does not wait for the program.
  int reached_ = -1;
  int go_ = -1;
};

/// The name of the runs of `gated_config`.
inline constexpr const char* kGatedRun = "gated";
inline constexpr std::uint64_t kGatedSteps = 12;
/// Responses that a step of `gated_config` needs.
inline constexpr int kGatedRows = 16;

/// Returns the YAML of a synchronous run that commits every step and gets its rewards from
/// reward_program.py. `more` is appended after the keys of `reward`, the last section.
[[nodiscard]] std::string gated_config(const std::string& model, const std::string& more = {});

/// Starts the run `run.yaml` of `folder` and kills it while it waits for rewards of step `step`,
/// some of which it has received. Returns false if that hangs.
[[nodiscard]] bool begin_and_kill(const RunFolder& folder, int step);

}  // namespace tidemill::test
