// SPDX-License-Identifier: Apache-2.0
// A file system that fails at a chosen system call.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <string>

#include "base/files/file.hpp"

namespace tidemill::test {

/// Forwards calls to the real file system, except call `at` (counted from 1), which fails with
/// `error`. With `dead`, all later calls fail too, including those that clean up, as if the process
/// had been killed at that call.
class FaultyFileSystem : public FileSystem {
public:
  struct Fault {
    int at = 0;  // 0: never
    int error = EIO;
    bool dead = false;
  };
  explicit FaultyFileSystem(Fault fault) : fault_(fault) {}
  [[nodiscard]] int num_calls() const { return num_calls_; }
  /// The most bytes that one write accepts.
  std::size_t max_write_bytes = SIZE_MAX;

  int create(const std::filesystem::path& path) override {
    return fails() ? -fault_.error : real_.create(path);
  }
  std::int64_t write(int descriptor, std::span<const std::byte> bytes) override {
    return fails() ? -fault_.error
                   : real_.write(descriptor, bytes.first(std::min(bytes.size(), max_write_bytes)));
  }
  int sync(int descriptor) override { return fails() ? -fault_.error : real_.sync(descriptor); }
  int close(int descriptor) override {
    const int result = real_.close(descriptor);  // close it in any case, so that none leaks
    return fails() ? -fault_.error : result;
  }
  int rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    return fails() ? -fault_.error : real_.rename(from, to);
  }
  int make_directory(const std::filesystem::path& path) override {
    return fails() ? -fault_.error : real_.make_directory(path);
  }
  int sync_directory(const std::filesystem::path& path) override {
    return fails() ? -fault_.error : real_.sync_directory(path);
  }
  int remove(int directory, const std::string& name, EntryKind kind) override {
    return fails() ? -fault_.error : real_.remove(directory, name, kind);
  }

private:
  bool fails() {
    ++num_calls_;
    return fault_.at != 0 && (num_calls_ == fault_.at || (fault_.dead && num_calls_ > fault_.at));
  }
  Fault fault_;
  int num_calls_ = 0;
  PosixFileSystem real_;
};

}  // namespace tidemill::test
