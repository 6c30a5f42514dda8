// SPDX-License-Identifier: Apache-2.0
#include "workflows/rl/role_devices.hpp"

#include <utility>

namespace tidemill::workflows {

actors::DeviceDeps serving_deps(const ServingEngines& engines, std::shared_ptr<void> runtime,
                                actors::WorkPort* port) {
  actors::DeviceDeps deps;
  deps.runtime = std::move(runtime);
  deps.rollout = engines.rollout;
  deps.port = port;
  deps.adapters = engines.adapters;
  deps.open_adapter = engines.open_adapter;
  return deps;
}

}  // namespace tidemill::workflows
