// SPDX-License-Identifier: Apache-2.0
#include "base/files/without_directory.hpp"

#include <string>

namespace tidemill {

Status without_directory(const Status& status, const std::filesystem::path& directory) {
  const std::string prefix = (directory / "").string();
  std::string message = status.message();
  for (std::size_t at = message.find(prefix); at != std::string::npos; at = message.find(prefix)) {
    message.erase(at, prefix.size());
  }
  return {status.code(), message};
}

}  // namespace tidemill
