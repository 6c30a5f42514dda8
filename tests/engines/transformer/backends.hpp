// SPDX-License-Identifier: Apache-2.0
// The operations that model tests run on, one after the other.
#pragma once

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "engines/ops/ops.hpp"
#include "engines/ops/reference/factory.hpp"

namespace tidemill::engines {

/// A backend to test, made afresh for each test.
struct Backend {
  std::string name;
  std::unique_ptr<Ops> (*make)();
};

inline std::ostream& operator<<(std::ostream& out, const Backend& backend) {
  return out << backend.name;
}

/// Returns every backend.
[[nodiscard]] inline std::vector<Backend> backends() {
  return {{"reference", make_reference_ops}};
}

}  // namespace tidemill::engines
