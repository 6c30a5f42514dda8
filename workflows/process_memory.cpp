// SPDX-License-Identifier: Apache-2.0
#include "workflows/process_memory.hpp"

#include <fstream>
#include <link.h>
#include <sstream>
#include <string>
#include <unistd.h>

namespace tidemill::workflows {
namespace {

// Returns a value from /proc/PID/status, which counts in KiB.
std::optional<std::int64_t> status_bytes(pid_t pid, const std::string& key) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    std::int64_t kib = 0;
    if (line.starts_with(key + ":") && std::istringstream(line.substr(key.size() + 1)) >> kib) {
      return kib * 1024;
    }
  }
  return std::nullopt;
}

// Adds the sizes of the read-only segments of one loaded object. Writable segments are private
// copies, which RssAnon already counts.
int add_code(dl_phdr_info* object, std::size_t /*size*/, void* sum) {
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    if (segment.p_type == PT_LOAD && (segment.p_flags & PF_W) == 0) {
      *static_cast<std::int64_t*>(sum) += static_cast<std::int64_t>(segment.p_filesz);
    }
  }
  return 0;
}

}  // namespace

std::optional<std::int64_t> program_bytes() {
  const std::optional<std::int64_t> held = status_bytes(::getpid(), "RssAnon");
  if (!held.has_value()) {
    return std::nullopt;
  }
  std::int64_t code = 0;
  dl_iterate_phdr(add_code, &code);
  return *held + code;
}

std::optional<std::int64_t> address_space_bytes() {
  return status_bytes(::getpid(), "VmSize");
}

std::optional<std::int64_t> data_bytes() {
  return status_bytes(::getpid(), "VmData");
}

std::optional<std::int64_t> peak_bytes() {
  return peak_bytes(::getpid());
}

std::optional<std::int64_t> resident_bytes(pid_t pid) {
  return status_bytes(pid, "VmRSS");
}

std::optional<std::int64_t> peak_bytes(pid_t pid) {
  return status_bytes(pid, "VmHWM");
}

}  // namespace tidemill::workflows
