// SPDX-License-Identifier: Apache-2.0
// Files: names, bounded reading, mapping, and changes that survive a crash.
//
// Whatever changes the disk goes through a `FileSystem`, one virtual function for one system call,
// so that a test can fail, shorten or stop at each of them. The durable operations below are
// written on top of it and follow one order: write a temporary file in the same directory, sync it,
// rename it over the target, sync the directory. A reader sees the old file or the new one, whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/buffer.hpp"
#include "base/result.hpp"

namespace tidemill {

// -- names ---------------------------------------------------------------------------------------

/// Checks that `name` may name a run, a checkpoint or a file of ours: one path component of 1 to
/// 128 characters of `[A-Za-z0-9._-]` that does not start with a dot.
/// Errors: `kInvalidArgument`.
[[nodiscard]] Status check_name(std::string_view name);

// -- reading -------------------------------------------------------------------------------------

/// A regular file opened for reading, with the size it had then.
///
/// Threads: safe to use concurrently.
class ReadableFile {
public:
  /// Opens `path`. Never blocks: anything but a regular file is refused.
  /// Errors: `kNotFound`; `kInvalidArgument` for a directory, device or pipe; `kUnavailable`.
  [[nodiscard]] static Result<ReadableFile> open(const std::filesystem::path& path);

  ReadableFile(ReadableFile&& other) noexcept;
  ReadableFile& operator=(ReadableFile&& other) noexcept;
  ReadableFile(const ReadableFile&) = delete;
  ReadableFile& operator=(const ReadableFile&) = delete;
  ~ReadableFile();

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] std::uint64_t size_bytes() const noexcept { return size_bytes_; }

  /// Fills `bytes` from `offset`.
  /// Errors: `kCorruptData` if the file ends before; `kUnavailable`.
  [[nodiscard]] Status read_at(std::uint64_t offset, std::span<std::byte> bytes) const;

  /// Maps the whole file, after checking that it still has its size; the mapping outlives this
  /// object, and keeps the file open for `Buffer::copy_to`. Bytes read through it may change if
  /// somebody writes to the file, and reading a page that somebody has cut off since kills the
  /// process (SIGBUS): map only files that are replaced by renaming, and use `read_at` for all
  /// others.
  /// Errors: `kCorruptData` if the size changed; `kResourceExhausted`; `kUnavailable`.
  [[nodiscard]] Result<Buffer> map() const;

private:
  ReadableFile(std::filesystem::path path, int descriptor, std::uint64_t size_bytes)
      : path_(std::move(path)), descriptor_(descriptor), size_bytes_(size_bytes) {}

  std::filesystem::path path_;
  int descriptor_ = -1;
  std::uint64_t size_bytes_ = 0;
};

/// Reads a whole text file of at most `max_bytes`.
/// Errors: as `ReadableFile`; `kInvalidArgument` if it is larger.
[[nodiscard]] Result<std::string> read_text_file(const std::filesystem::path& path,
                                                 std::uint64_t max_bytes);

/// Returns the names in `directory`, sorted, without "." and "..".
/// Errors: `kNotFound`, `kInvalidArgument`, `kUnavailable`.
[[nodiscard]] Result<std::vector<std::string>> list_directory(
    const std::filesystem::path& directory);

// -- changing ------------------------------------------------------------------------------------

/// What a directory entry is to the call that removes it.
enum class EntryKind : std::uint8_t { kFile, kDirectory };

/// The system calls that change a disk. Each returns what the call returns, or the negative errno.
///
/// Threads: safe to use concurrently.
class FileSystem {
public:
  FileSystem() = default;
  FileSystem(const FileSystem&) = delete;
  FileSystem& operator=(const FileSystem&) = delete;
  virtual ~FileSystem() = default;

  /// Creates `path` and opens it for writing; -EEXIST if it is there. Returns a descriptor.
  [[nodiscard]] virtual int create(const std::filesystem::path& path) = 0;
  /// Returns how many bytes were written, which may be fewer than asked.
  [[nodiscard]] virtual std::int64_t write(int descriptor, std::span<const std::byte> bytes) = 0;
  [[nodiscard]] virtual int sync(int descriptor) = 0;
  [[nodiscard]] virtual int close(int descriptor) = 0;
  [[nodiscard]] virtual int rename(const std::filesystem::path& from,
                                   const std::filesystem::path& to) = 0;
  [[nodiscard]] virtual int make_directory(const std::filesystem::path& path) = 0;
  /// Makes the entries of `path`, a directory, durable.
  [[nodiscard]] virtual int sync_directory(const std::filesystem::path& path) = 0;
  /// Removes `name` in the directory open as `directory` (AT_FDCWD: `name` is a path).
  [[nodiscard]] virtual int remove(int directory, const std::string& name, EntryKind kind) = 0;
};

/// The machine's own file system. Stateless: make one wherever one is needed.
class PosixFileSystem final : public FileSystem {
public:
  [[nodiscard]] int create(const std::filesystem::path& path) override;
  [[nodiscard]] std::int64_t write(int descriptor, std::span<const std::byte> bytes) override;
  [[nodiscard]] int sync(int descriptor) override;
  [[nodiscard]] int close(int descriptor) override;
  [[nodiscard]] int rename(const std::filesystem::path& from,
                           const std::filesystem::path& to) override;
  [[nodiscard]] int make_directory(const std::filesystem::path& path) override;
  [[nodiscard]] int sync_directory(const std::filesystem::path& path) override;
  [[nodiscard]] int remove(int directory, const std::string& name, EntryKind kind) override;
};

/// A file being written that appears under its name whole, or not at all.
///
/// Bytes go to a temporary file beside the target. After the first failure every further call
/// returns that failure: a file whose sync failed is dropped, never synced again, because the
/// kernel may have thrown its pages away. Destroying an uncommitted object removes the temporary
/// file; a killed process leaves it behind for `remove_temporary_files`.
class DurableFile {
public:
  /// Starts writing what shall become `path`; a failure to start is what the first call returns.
  /// Borrows `files` until destroyed.
  /// Errors, of all writes: `kResourceExhausted` for a full disk, quota or descriptor table,
  /// `kNotFound` for a missing directory, `kInvalidArgument` for one that cannot be written to,
  /// `kUnavailable` for an I/O error.
  DurableFile(FileSystem& files, std::filesystem::path path);
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;
  ~DurableFile();

  /// Appends `bytes`.
  [[nodiscard]] Status write(std::span<const std::byte> bytes);

  /// Makes the file durable under its name, replacing what was there. Call once, last. When only
  /// the last step, syncing the directory, fails, the new file stands in its place but may be gone
  /// after a power cut; the failure says so.
  [[nodiscard]] Status commit();

private:
  Status fail(std::string_view action, std::int64_t result);
  void drop();

  FileSystem& files_;
  std::filesystem::path target_;
  std::filesystem::path temporary_;  // empty once renamed or removed
  int descriptor_ = -1;
  Status failure_;
};

/// Writes `bytes` as `path`, durably and at once. Errors: as `DurableFile`.
[[nodiscard]] Status write_file(FileSystem& files, const std::filesystem::path& path,
                                std::span<const std::byte> bytes);
/// Writes `text` as `path`, durably and at once. Errors: as `DurableFile`.
[[nodiscard]] Status write_file(FileSystem& files, const std::filesystem::path& path,
                                std::string_view text);

/// Creates the directory `path` durably unless it exists; its parent must exist.
/// Errors: as `DurableFile`; `kInvalidArgument` if something else has that name.
[[nodiscard]] Status make_directory(FileSystem& files, const std::filesystem::path& path);

/// Removes the file `path` durably.
/// Errors: `kNotFound`, `kInvalidArgument`, `kUnavailable`.
[[nodiscard]] Status remove_file(FileSystem& files, const std::filesystem::path& path);

/// Removes what a killed process left half written in `directory`. Nobody else may be writing
/// there. Errors: as `remove_file`.
[[nodiscard]] Status remove_temporary_files(FileSystem& files,
                                            const std::filesystem::path& directory);

/// Removes the entry `name` of `root` with all it holds, at most 64 levels deep. Links are removed,
/// never followed, even when somebody swaps them in meanwhile.
/// Errors: `kInvalidArgument` for a bad name or a deeper tree; as `remove_file`.
[[nodiscard]] Status remove_tree(FileSystem& files, const std::filesystem::path& root,
                                 const std::string& name);

/// Makes the failure of a system call on `path`: "PATH: cannot ACTION: REASON", with the code that
/// a caller can act on (see `DurableFile`).
[[nodiscard]] Status system_error(int error, std::string_view action,
                                  const std::filesystem::path& path);

}  // namespace tidemill
