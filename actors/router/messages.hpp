// SPDX-License-Identifier: Apache-2.0
// The messages of a router.
#pragma once

#include <string>

namespace tidemill::actors {

/// A device that shall get no more requests.
struct QuarantinedDevice {
  std::string name;
  std::string reason;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, QuarantinedDevice& x) {
  return f(x.name, x.reason);
}

}  // namespace tidemill::actors
