// SPDX-License-Identifier: Apache-2.0
// The messages of a router.
#pragma once

#include <string>

namespace tidemill::actors {

/// A device to remove from the router.
struct QuarantinedDevice {
  std::string name;
  std::string reason;
  bool await_join = false;  // no device serves, but one is joining: requests wait until it has
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, QuarantinedDevice& x) {
  return f(x.name, x.reason, x.await_join);
}

}  // namespace tidemill::actors
