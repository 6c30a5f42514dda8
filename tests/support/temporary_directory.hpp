// SPDX-License-Identifier: Apache-2.0
// A directory of its own for a test that needs files.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <unistd.h>

#include "base/check.hpp"

namespace tidemill::test {

/// Returns a directory in memory where the machine has one, else the usual one: for tests that make
/// thousands of small files and need no disk.
inline std::filesystem::path memory_directory_path() {
  const std::filesystem::path memory = "/dev/shm";
  return ::access(memory.c_str(), W_OK | X_OK) == 0 ? memory
                                                    : std::filesystem::temp_directory_path();
}

/// Creates an empty directory; removes it with all it holds when destroyed, unless it is kept.
class TemporaryDirectory {
public:
  explicit TemporaryDirectory(
      const std::filesystem::path& parent = std::filesystem::temp_directory_path()) {
    std::string pattern = (parent / "tidemill-test-XXXXXX").string();
    TIDEMILL_CHECK(::mkdtemp(pattern.data()) != nullptr) << pattern;
    path_ = pattern;
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    if (!kept_) {
      std::error_code ignored;
      std::filesystem::remove_all(path_, ignored);
    }
  }

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  /// Leaves it there, to be looked at.
  void keep() noexcept { kept_ = true; }

private:
  std::filesystem::path path_;
  bool kept_ = false;
};

}  // namespace tidemill::test
