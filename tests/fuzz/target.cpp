// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/target.hpp"

#include <algorithm>
#include <fstream>
#include <sys/mman.h>
#include <unistd.h>

#include "base/check.hpp"

namespace tidemill::fuzz {

namespace {

// Enough for two quoted texts of 80 bytes, four characters for each byte, and the words around
// them.
constexpr std::size_t kMaxRefusalBytes = 800;

}  // namespace

void require(bool holds, const std::string& invariant) {
  if (!holds) {
    throw InvariantViolation(invariant);
  }
}

void require_ok(const Status& status, const std::string& what) {
  require(status.ok(), what + ": " + status.to_string());
}

void require_refusal(const Status& status, std::string_view location) {
  const std::string& message = status.message();
  require(!status.ok(), "refused without a failure");
  require(message.size() > location.size() && message.starts_with(location),
          "a refusal begins with \"" + std::string(location) + "\": " + message);
  require(message.size() <= location.size() + kMaxRefusalBytes,
          "a refusal is a short line: " + message);
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20U || c == 0x7F; };
  require(std::none_of(message.begin(), message.end(), is_control),
          "a refusal is one line without control characters: " + message);
}

std::vector<std::string_view> parts_of(std::string_view input, std::size_t count) {
  std::vector<std::string_view> parts;
  while (parts.size() + 1 < count) {
    const std::size_t end = std::min(input.find('\0'), input.size());
    parts.push_back(input.substr(0, end));
    input.remove_prefix(std::min(end + 1, input.size()));
  }
  parts.push_back(input);
  return parts;
}

MemoryFile::MemoryFile()
    : descriptor_(::memfd_create("input", MFD_CLOEXEC)),
      path_("/proc/self/fd/" + std::to_string(descriptor_)) {
  TIDEMILL_CHECK(descriptor_ >= 0) << "memfd_create failed";
}

MemoryFile::~MemoryFile() {
  ::close(descriptor_);
}

void MemoryFile::fill(std::string_view bytes) {
  TIDEMILL_CHECK(::ftruncate(descriptor_, 0) == 0) << path_;
  const auto written = ::pwrite(descriptor_, bytes.data(), bytes.size(), 0);
  TIDEMILL_CHECK(written == static_cast<ssize_t>(bytes.size())) << path_;
}

void put_file(const std::string& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  TIDEMILL_CHECK(file.good()) << path;
}

}  // namespace tidemill::fuzz
