// SPDX-License-Identifier: Apache-2.0
// A directory that is identified by a descriptor instead of by its path.
//
// A path may name another directory later: if a directory is renamed and its old path is used
// again, a program that works in it for hours would write into the wrong one. A `HeldDirectory`
// keeps the directory open instead, and changes inside it are made relative to its descriptor.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "base/files/file.hpp"
#include "base/result.hpp"

namespace tidemill {

/// A directory that is kept open.
///
/// Threads: safe to use concurrently.
class HeldDirectory {
public:
  /// Opens the directory that `path` names now.
  /// Errors: `kNotFound`; `kInvalidArgument` if it is not a directory; `kUnavailable`.
  [[nodiscard]] static Result<std::shared_ptr<const HeldDirectory>> open(
      std::filesystem::path path);

  HeldDirectory(const HeldDirectory&) = delete;
  HeldDirectory& operator=(const HeldDirectory&) = delete;
  ~HeldDirectory();

  /// Returns the path with which the directory was opened.
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  /// Returns a descriptor for system calls such as `openat`. It is closed on exec and belongs to
  /// this object.
  [[nodiscard]] int descriptor() const noexcept { return descriptor_; }

  /// Returns whether `path` still names this directory.
  [[nodiscard]] bool in_place() const;
  /// Returns the absolute path of the directory now, or nothing if it was removed.
  [[nodiscard]] std::optional<std::filesystem::path> current_path() const;

private:
  HeldDirectory(std::filesystem::path path, int descriptor)
      : path_(std::move(path)), descriptor_(descriptor) {}

  std::filesystem::path path_;
  int descriptor_;
};

/// What a change does if the directory is no longer at its path.
enum class OnMove : std::uint8_t {
  kRefuse,  // fails with ESTALE and changes nothing
  kFollow,  // happens in the directory, wherever that is
};

/// The machine's file system. Paths inside one directory are resolved relative to its descriptor,
/// so a change never happens in another directory that has taken its path. Other paths are resolved
/// as usual.
class HeldDirectoryFiles final : public FileSystem {
public:
  HeldDirectoryFiles(std::shared_ptr<const HeldDirectory> directory, OnMove on_move)
      : directory_(std::move(directory)), on_move_(on_move) {}

  [[nodiscard]] int create(const std::filesystem::path& path) override;
  [[nodiscard]] std::int64_t write(int descriptor, std::span<const std::byte> bytes) override;
  [[nodiscard]] int sync(int descriptor) override;
  [[nodiscard]] int close(int descriptor) override;
  [[nodiscard]] int rename(const std::filesystem::path& from,
                           const std::filesystem::path& to) override;
  [[nodiscard]] int make_directory(const std::filesystem::path& path) override;
  [[nodiscard]] int sync_directory(const std::filesystem::path& path) override;
  [[nodiscard]] int remove(int directory, const std::string& name, EntryKind kind) override;

private:
  struct Location {
    int directory;     // AT_FDCWD for a path outside the directory
    std::string name;  // relative to `directory`
  };
  [[nodiscard]] Location locate(const std::filesystem::path& path) const;
  // Returns whether a change at `location` must be refused.
  [[nodiscard]] bool refuses(const Location& location) const;

  std::shared_ptr<const HeldDirectory> directory_;
  OnMove on_move_;
  PosixFileSystem machine_;
};

/// Opens the file `name` of `directory` for appending, and creates it if it does not exist. Never
/// blocks. The descriptor is closed on exec.
/// Errors: `kInvalidArgument` naming the file if it is not a regular one; as `ReadableFile::open`.
[[nodiscard]] Result<int> open_for_append(const HeldDirectory& directory, const std::string& name);

}  // namespace tidemill
