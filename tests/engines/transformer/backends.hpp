// SPDX-License-Identifier: Apache-2.0
// The backends that model tests run on.
#pragma once

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "engines/ops/ops.hpp"

namespace tidemill::engines {

/// A backend under test. Each test creates a new instance.
struct Backend {
  std::string name;
  std::shared_ptr<Ops> (*make)();
};

inline std::ostream& operator<<(std::ostream& out, const Backend& backend) {
  return out << backend.name;
}

/// Returns every backend: the reference, the CPU backend with two threads, and the same on guarded
/// memory with deferred operations.
[[nodiscard]] std::vector<Backend> backends();

}  // namespace tidemill::engines
