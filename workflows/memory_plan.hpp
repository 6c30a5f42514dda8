// SPDX-License-Identifier: Apache-2.0
// What a run will hold in memory, and what it may.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.hpp"
#include "engines/runtime/factory.hpp"
#include "workflows/run_options.hpp"

namespace tidemill::workflows {

/// The most that a run holds. Units: bytes.
struct MemoryPlan {
  engines::MemoryEstimate engine;
  std::int64_t stream_bytes = 0;  // rows between the stages
  std::int64_t best_bytes = 0;    // the best weights so far, where they are kept
  [[nodiscard]] std::int64_t total() const noexcept {
    return engine.total() + stream_bytes + best_bytes;
  }
};

/// Returns the plan in one line: "26.4 MiB: weights 12.1, ...".
[[nodiscard]] std::string to_text(const MemoryPlan& plan);

/// Returns what a run may take: `memory_bytes`, or what the machine has and its control groups
/// (version 2) allow. Units: bytes.
[[nodiscard]] std::int64_t allowed_memory(const DeviceOptions& device);

/// Refuses a run that would not fit, before it starts.
/// Errors: `kInvalidArgument` naming `device.memory_bytes`, what is needed and for what.
[[nodiscard]] Status check_memory(const MemoryPlan& plan, const DeviceOptions& device);

}  // namespace tidemill::workflows
