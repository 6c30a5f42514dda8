// SPDX-License-Identifier: Apache-2.0
#include "base/ids.hpp"

namespace tidemill {

std::string to_string(const PolicyVersion& version) {
  return std::to_string(version.line) + "." + std::to_string(version.incarnation) + "." +
         std::to_string(version.step);
}

}  // namespace tidemill
