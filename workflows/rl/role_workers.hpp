// SPDX-License-Identifier: Apache-2.0
// What a role of workers hands to the supervisor.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "actors/supervisor/spawn.hpp"

namespace tidemill::workflows {

/// The workers of one role. The supervisor starts those with the numbers below `initial`, and may
/// add others while the run goes on.
struct RoleWorkers {
  std::string role;
  std::uint32_t initial = 1;
  std::function<actors::WorkerSpec(std::uint32_t number)> make;
};

}  // namespace tidemill::workflows
