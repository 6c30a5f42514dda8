// SPDX-License-Identifier: Apache-2.0
#include "workflows/processes/process_log.hpp"

#include <ctime>
#include <fcntl.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include "base/files/unique_fd.hpp"
#include "base/text/time_text.hpp"

namespace tidemill::workflows {

void ProcessLog::write(const std::string& name, const std::vector<std::string>& lines) const {
  const std::string start = local_time_text(std::time(nullptr)) + " " + name + ": ";
  std::string text;
  for (const std::string& line : lines) {
    text += start + line + "\n";
  }
  std::error_code ignored;
  if (const auto size = std::filesystem::file_size(path_, ignored);
      !ignored && size + text.size() > max_bytes_) {
    std::filesystem::rename(path_, path_.string() + ".1", ignored);
  }
  // Opened for each call: processes seldom write, and descriptors may be scarce.
  constexpr mode_t kMode = 0644;
  const UniqueFd file(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, kMode));
  if (file.is_open()) {
    [[maybe_unused]] const ssize_t written = ::write(file.get(), text.data(), text.size());
  }
}

}  // namespace tidemill::workflows
