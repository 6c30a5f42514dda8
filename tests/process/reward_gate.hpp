// SPDX-License-Identifier: Apache-2.0
// Stops a run in the middle of a step, at a moment that the run itself comes to.
#pragma once

#include <cstdint>
#include <string>

#include "tests/process/run_folder.hpp"

namespace tidemill::test {

/// Steers reward_program.py, which the runs of `gated_config` use, through files in their folder.
class RewardGate {
public:
  /// Borrows `folder` for its lifetime.
  explicit RewardGate(const RunFolder& folder);
  RewardGate(const RewardGate&) = delete;
  RewardGate& operator=(const RewardGate&) = delete;
  ~RewardGate();

  /// Says what programs started from now on do wrong: a line as reward_program.py documents it.
  void set_behaviour(const std::string& behaviour) const;
  /// From now on programs do nothing wrong.
  void clear_behaviour() const;

  /// Waits until a program stands before its gate; false when that hangs.
  [[nodiscard]] bool wait_reached() const;
  /// Lets the program go on.
  void open() const;

private:
  const RunFolder& folder_;
  // Open for reading and writing: neither side waits for the other to open.
  int reached_ = -1;
  int go_ = -1;
};

/// The name of the runs of `gated_config`.
inline constexpr const char* kGatedRun = "gated";
inline constexpr std::uint64_t kGatedSteps = 12;
/// Answers that a step of `gated_config` needs.
inline constexpr int kGatedRows = 16;

/// Returns the YAML of a synchronous run that commits every step and is rewarded by
/// reward_program.py; `more` is appended to the keys of `reward`, which come last.
[[nodiscard]] std::string gated_config(const std::string& model, const std::string& more = {});

/// Starts the run `run.yaml` of `folder` and kills it while it waits for rewards of step `step`, of
/// which it has some. False when that hangs.
[[nodiscard]] bool begin_and_kill(const RunFolder& folder, int step);

}  // namespace tidemill::test
