// SPDX-License-Identifier: Apache-2.0
// How the supervisor makes the workers of one kind.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "actors/supervisor/spawn.hpp"

namespace tidemill::workflows {

/// Makes the workers of one kind. The supervisor starts those with the numbers below `initial`, and
/// may add others while the run goes on.
struct WorkerFactory {
  std::string kind;
  std::uint32_t initial = 1;
  std::function<actors::WorkerSpec(std::uint32_t number)> make;
};

}  // namespace tidemill::workflows
