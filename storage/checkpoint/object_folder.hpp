// SPDX-License-Identifier: Apache-2.0
// The folder of immutable files named by the digest of their content.
#pragma once

#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <string_view>

#include "base/file.hpp"
#include "base/result.hpp"
#include "base/tensor.hpp"
#include "base/tensor_file.hpp"
#include "storage/checkpoint/manifest.hpp"

namespace tidemill::storage {

/// Opens a file of a store: a regular file, never a link, which might lead out of the run.
/// Errors: `kCorruptData` when it is missing or a link; as `ReadableFile::open`.
[[nodiscard]] Result<ReadableFile> open_stored_file(const std::filesystem::path& path);

/// An object that stands durably in its folder and has been read back.
struct StoredObject {
  ObjectRef ref;
  bool reused = false;  // it was there before, and intact
};

/// Writes, checks, reads and removes objects. Which of them are durable, and which are still
/// needed, its owner knows.
class ObjectFolder {
public:
  /// Borrows `files` for its lifetime.
  ObjectFolder(FileSystem& files, std::filesystem::path folder)
      : files_(files), folder_(std::move(folder)) {}

  /// Stores `tensors` under the name `name`. A file of `durable` that is intact is used again; one
  /// that is damaged, and any other that is there, is replaced: it may have come from a write whose
  /// sync failed.
  /// Errors: as `write_tensor_file`; `kCorruptData` when what is read back is not what was written.
  [[nodiscard]] Result<StoredObject> put_tensors(const std::string& name, const TensorMap& tensors,
                                                 const std::set<std::string>& durable);
  /// Stores `bytes` under the name `name`; all else as `put_tensors`.
  [[nodiscard]] Result<StoredObject> put_blob(const std::string& name, std::string_view bytes,
                                              const std::set<std::string>& durable);

  /// Reads the whole object and compares it with `ref`.
  /// Errors: `kCorruptData` naming the file when it is missing, a link, too short, too long, or
  /// changed; `kUnavailable` when it cannot be read.
  [[nodiscard]] Status verify(const ObjectRef& ref) const;

  /// Reads an object that `verify` has found good. Errors: as `verify`.
  [[nodiscard]] Result<TensorMap> read_tensors(const ObjectRef& ref) const;
  [[nodiscard]] Result<std::string> read_blob(const ObjectRef& ref) const;

  /// Removes what a killed writer left, and every object that is not in `needed`. Files that are
  /// not named like objects are left alone.
  [[nodiscard]] Status keep_only(const std::set<std::string>& needed);

private:
  /// Hands all bytes of an object to a sink; called once to digest and once to write.
  using Source = std::function<Status(const ByteSink&)>;

  [[nodiscard]] Result<StoredObject> put(const std::string& name, ObjectKind kind,
                                         const Source& source,
                                         const std::set<std::string>& durable);

  FileSystem& files_;
  std::filesystem::path folder_;
};

}  // namespace tidemill::storage
