// SPDX-License-Identifier: Apache-2.0
// Files: valid names, bounded reading, mapping, and changes that survive a crash.
//
// Every change to the disk goes through a `FileSystem`, which has one virtual function per system
// call, so that a test can make each call fail, write less, or be the last one. The durable
// operations below are built on it and follow one order: write a temporary file in the same
// directory, sync it, rename it over the target, sync the directory. A reader sees either the old
// file or the new one, and always a complete one.
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

/// Checks that `name` is valid for a run, a checkpoint or a file: one path component of 1 to 128
/// characters from `[A-Za-z0-9._-]` that does not start with a dot.
/// Errors: `kInvalidArgument`.
[[nodiscard]] Status check_name(std::string_view name);

// -- reading -------------------------------------------------------------------------------------

/// A regular file that was opened for reading, and its size at that time.
///
/// Threads: safe to use concurrently.
class ReadableFile {
public:
  /// Opens `path`. Never blocks; anything but a regular file is refused.
  /// Errors: `kNotFound`; `kInvalidArgument` for a directory, device or pipe; `kUnavailable`.
  [[nodiscard]] static Result<ReadableFile> open(const std::filesystem::path& path);

  ReadableFile(ReadableFile&& other) noexcept;
  ReadableFile& operator=(ReadableFile&& other) noexcept;
  ReadableFile(const ReadableFile&) = delete;
  ReadableFile& operator=(const ReadableFile&) = delete;
  ~ReadableFile();

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] std::uint64_t size_bytes() const noexcept { return size_bytes_; }

  /// Fills `bytes` with the content from `offset` on.
  /// Errors: `kCorruptData` if the file ends too early; `kUnavailable`.
  [[nodiscard]] Status read_at(std::uint64_t offset, std::span<std::byte> bytes) const;

  /// Maps the whole file after checking that it still has its size. The mapping outlives this
  /// object and keeps the file open for `Buffer::copy_to`. If another process writes to the file,
  /// the mapped bytes may change; if it truncates the file, reading a page beyond the new end kills
  /// this process (SIGBUS). Map only files that are replaced by renaming, and use `read_at` for all
  /// others.
  /// Errors: `kCorruptData` if the size changed; `kResourceExhausted`; `kUnavailable`.
  [[nodiscard]] Result<Buffer> map() const;
  /// Reads from the beginning to the end, but at most `max_bytes`, whatever size was reported.
  /// Errors: `kUnavailable`.
  [[nodiscard]] Result<std::string> read_prefix(std::size_t max_bytes) const;

private:
  ReadableFile(std::filesystem::path path, int descriptor, std::uint64_t size_bytes)
      : path_(std::move(path)), descriptor_(descriptor), size_bytes_(size_bytes) {}

  std::filesystem::path path_;
  int descriptor_ = -1;
  std::uint64_t size_bytes_ = 0;
};

/// Reads a whole text file of at most `max_bytes`.
/// Errors: as `ReadableFile`; `kInvalidArgument` if the file is larger.
[[nodiscard]] Result<std::string> read_text_file(const std::filesystem::path& path,
                                                 std::uint64_t max_bytes);

/// Returns `path` as an absolute one without "." and ".."; unchanged if the working directory is
/// gone.
[[nodiscard]] std::filesystem::path absolute_path(const std::filesystem::path& path);

/// Returns the names in `directory`, sorted, without "." and "..".
/// Errors: `kNotFound`, `kInvalidArgument`, `kUnavailable`.
[[nodiscard]] Result<std::vector<std::string>> list_directory(
    const std::filesystem::path& directory);

// -- changing ------------------------------------------------------------------------------------

/// The kind of a directory entry that is to be removed.
enum class EntryKind : std::uint8_t { kFile, kDirectory };

/// The system calls that change a disk. Each returns the call's result, or the negated errno.
///
/// Threads: safe to use concurrently.
class FileSystem {
public:
  FileSystem() = default;
  FileSystem(const FileSystem&) = delete;
  FileSystem& operator=(const FileSystem&) = delete;
  virtual ~FileSystem() = default;

  /// Creates `path` and opens it for writing. Returns a descriptor, or -EEXIST if `path` exists.
  [[nodiscard]] virtual int create(const std::filesystem::path& path) = 0;
  /// Returns how many bytes were written, which may be fewer than requested.
  [[nodiscard]] virtual std::int64_t write(int descriptor, std::span<const std::byte> bytes) = 0;
  [[nodiscard]] virtual int sync(int descriptor) = 0;
  [[nodiscard]] virtual int close(int descriptor) = 0;
  [[nodiscard]] virtual int rename(const std::filesystem::path& from,
                                   const std::filesystem::path& to) = 0;
  [[nodiscard]] virtual int make_directory(const std::filesystem::path& path) = 0;
  /// Makes the entries of the directory `path` durable.
  [[nodiscard]] virtual int sync_directory(const std::filesystem::path& path) = 0;
  /// Removes the entry `name` of the open directory `directory`. With AT_FDCWD, `name` is a path.
  [[nodiscard]] virtual int remove(int directory, const std::string& name, EntryKind kind) = 0;
};

/// The machine's own file system. It has no state: construct one wherever one is needed.
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

/// A file that appears under its name when it is complete, or not at all.
///
/// Bytes go to a temporary file in the target's directory. After the first failure, every further
/// call returns that failure. A file whose sync failed is removed and never synced again, because
/// the kernel may have discarded its pages. Destroying an uncommitted object removes the temporary
/// file. A killed process leaves it behind for `remove_temporary_files`.
class DurableFile {
public:
  /// Starts writing the file that is to become `path`. If that fails, the first call of another
  /// member returns the failure. Borrows `files` until destroyed.
  /// Errors, of all writes: `kResourceExhausted` for a full disk, quota or descriptor table;
  /// `kNotFound` for a missing directory; `kInvalidArgument` for a directory that cannot be written
  /// to; `kUnavailable` for an I/O error.
  DurableFile(FileSystem& files, std::filesystem::path path);
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;
  ~DurableFile();

  /// Appends `bytes`.
  [[nodiscard]] Status write(std::span<const std::byte> bytes);

  /// Makes the file durable under its name, replacing any file of that name. Call it once, last. If
  /// only the final step fails, which is to sync the directory, the new file has its name but may
  /// be gone after a power failure; the message says so.
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

/// Writes `bytes` to `path`, durably and atomically. Errors: as `DurableFile`.
[[nodiscard]] Status write_file(FileSystem& files, const std::filesystem::path& path,
                                std::span<const std::byte> bytes);
/// Writes `text` to `path`, durably and atomically. Errors: as `DurableFile`.
[[nodiscard]] Status write_file(FileSystem& files, const std::filesystem::path& path,
                                std::string_view text);

/// Creates the directory `path` durably unless it exists; its parent must exist.
/// Errors: as `DurableFile`; `kInvalidArgument` if `path` exists and is not a directory.
[[nodiscard]] Status make_directory(FileSystem& files, const std::filesystem::path& path);

/// Removes the file `path` durably.
/// Errors: `kNotFound`, `kInvalidArgument`, `kUnavailable`.
[[nodiscard]] Status remove_file(FileSystem& files, const std::filesystem::path& path);

/// Removes the temporary files that a killed process left in `directory`. The caller must be the
/// only writer there. Errors: as `remove_file`.
[[nodiscard]] Status remove_temporary_files(FileSystem& files,
                                            const std::filesystem::path& directory);

/// Removes the entry `name` of `root` and everything in it, at most 64 levels deep. Links are
/// removed and never followed, even if another process creates them in the meantime.
/// Errors: `kInvalidArgument` for a bad name or a deeper tree; otherwise as `remove_file`.
[[nodiscard]] Status remove_tree(FileSystem& files, const std::filesystem::path& root,
                                 const std::string& name);

/// Returns the failure of a system call on `path`: "PATH: cannot ACTION: REASON", with a code that
/// the caller can act on (see `DurableFile`).
[[nodiscard]] Status system_error(int error, std::string_view action,
                                  const std::filesystem::path& path);

}  // namespace tidemill
