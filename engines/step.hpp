// SPDX-License-Identifier: Apache-2.0
// The bounds of one engine iteration, and the report of what it did.
#pragma once

#include <compare>
#include <cstdint>
#include <limits>

#include "base/clock.hpp"

namespace tidemill::engines {

/// Bounds the work of one iteration: a call of `RolloutEngine::step` or `TrainingJob::advance`.
struct StepBudget {
  std::int64_t tokens = 2048;
  /// The maximum number of `tokens` in prefill chunks. It bounds how long a long prompt delays the
  /// next tokens of other sequences. At least one token is computed.
  std::int64_t prefill_tokens = std::numeric_limits<std::int64_t>::max();
  /// Once prefill chunks have this many tokens, the iteration begins no further prompt. So the
  /// first token of a prompt waits for fewer later ones.
  std::int64_t prefill_target = std::numeric_limits<std::int64_t>::max();
  /// The maximum number of units of a training job. A unit takes a window of tokens through a part
  /// of a layer or the head, forward or backward; or it evaluates the loss; or it updates, lays
  /// out, saves or captures a part of the parameters. At least 1.
  std::int64_t units = std::numeric_limits<std::int64_t>::max();
};

/// The kinds of units of a training job.
enum class UnitStage : std::uint8_t {
  kForward,
  kHead,  // log-probabilities
  kLoss,
  kHeadBackward,
  kBackward,
  kOptimizer,  // gathers gradients, updates parameters, sets gradients to zero
  kWeights,    // lays weights out, or copies them
};

/// Describes a unit of a training job. Units of equal descriptions take about equal time.
struct UnitKind {
  UnitStage stage = UnitStage::kWeights;
  std::uint8_t part = 0;  // which part of a layer or of the head
  std::int64_t rows = 0;  // that it takes through the part; 0 where that does not matter
  std::int64_t span = 0;  // positions that these rows may attend to, at most
  friend auto operator<=>(const UnitKind&, const UnitKind&) = default;
};

/// Reports what one iteration did.
struct StepReport {
  std::int64_t prefill_tokens = 0;  // computed for prompts, or again after a preemption
  std::int64_t decode_tokens = 0;   // computed, one per sequence
  std::int64_t cached_tokens = 0;   // found in the cache by sequences that started
  /// The cached positions that the iteration read, added up over its sequences.
  std::int64_t read_tokens = 0;
  std::int64_t preemptions = 0;  // sequences that lost their pages since the last report
  /// The share of the cache's pages that sequences hold, in [0, 1]. Pages that a training job
  /// reserves do not count.
  double kv_use = 0.0;
  std::int64_t running = 0;       // sequences that hold pages after the iteration
  std::int64_t waiting = 0;       // sequences that have not started, or were preempted
  std::int64_t train_tokens = 0;  // of the micro-batch, if the iteration ended it
  std::int64_t train_units = 0;
  /// True if training computed nothing because other training jobs hold too many of the cache's
  /// pages. They give them back at the end of their micro-batches.
  bool waits_for_pages = false;
  /// Zero for engines that compute. The `replay` engines return the virtual time that the step
  /// takes. Their results count as produced once that time has passed.
  Duration virtual_duration{0};
  /// True if the engine has more work to do.
  bool more = false;
};

}  // namespace tidemill::engines
