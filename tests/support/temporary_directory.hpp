// SPDX-License-Identifier: Apache-2.0
// A directory of its own for a test that needs files.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/check.hpp"

namespace tidemill::test {

/// Creates an empty directory; removes it with all it holds when destroyed.
class TemporaryDirectory {
public:
  TemporaryDirectory() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "tidemill-test-XXXXXX").string();
    TIDEMILL_CHECK(::mkdtemp(pattern.data()) != nullptr) << pattern;
    path_ = pattern;
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

private:
  std::filesystem::path path_;
};

}  // namespace tidemill::test
