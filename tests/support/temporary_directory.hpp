// SPDX-License-Identifier: Apache-2.0
// Temporary directories for tests that need files.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <unistd.h>

#include "base/check.hpp"

namespace tidemill::test {

/// Returns a directory in memory if the machine has one, else the directory for temporary files.
/// For tests that make thousands of small files and need no disk.
inline std::filesystem::path memory_directory_path() {
  const std::filesystem::path memory = "/dev/shm";
  return ::access(memory.c_str(), W_OK | X_OK) == 0 ? memory
                                                    : std::filesystem::temp_directory_path();
}

/// Creates an empty directory. The destructor removes it with its contents, unless `keep` was
/// called.
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
  /// Keeps the directory after the test, for inspection.
  void keep() noexcept { kept_ = true; }

private:
  std::filesystem::path path_;
  bool kept_ = false;
};

}  // namespace tidemill::test
