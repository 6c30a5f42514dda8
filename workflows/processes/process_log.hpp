// SPDX-License-Identifier: Apache-2.0
// The file that takes what the processes of a run write to stdout and stderr.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace tidemill::workflows {

/// A file of lines, each with the local time and the name of its process. A file that has become
/// too large gets the suffix ".1", in place of the one that had it before. Lines that cannot be
/// written are lost.
///
/// Threads: one call at a time.
class ProcessLog {
public:
  /// How large the file may become before the next one begins. Units: bytes.
  static constexpr std::size_t kMaxBytes = 8U << 20U;

  /// Does not touch the file before the first line.
  explicit ProcessLog(std::filesystem::path path, std::size_t max_bytes = kMaxBytes)
      : path_(std::move(path)), max_bytes_(max_bytes) {}

  /// Adds lines of the process `name`.
  void write(const std::string& name, const std::vector<std::string>& lines) const;

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

private:
  std::filesystem::path path_;
  std::size_t max_bytes_;
};

}  // namespace tidemill::workflows
