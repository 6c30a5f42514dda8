// SPDX-License-Identifier: Apache-2.0
// The folder of immutable files that are named by the digest of their content.
#pragma once

#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <string_view>

#include "base/files/file.hpp"
#include "base/files/tensor_file.hpp"
#include "base/result.hpp"
#include "base/tensor/tensor.hpp"
#include "storage/checkpoint/manifest.hpp"

namespace tidemill::storage {

/// Opens a file of a store: a regular file, and never a link, which might lead out of the run.
/// Errors: `kCorruptData` if it is missing or not a regular file; as `ReadableFile::open`.
[[nodiscard]] Result<ReadableFile> open_stored_file(const std::filesystem::path& path);

/// An object that is durable in its folder and has been read back.
struct StoredObject {
  ObjectRef ref;
  bool reused = false;  // the file existed already and was intact
};

/// Writes, checks, reads and removes objects. The owner knows which of them are durable and which
/// are still needed.
class ObjectFolder {
public:
  /// Borrows `files` for its lifetime.
  ObjectFolder(FileSystem& files, std::filesystem::path folder)
      : files_(files), folder_(std::move(folder)) {}

  /// Stores `tensors` under the name `name`. An intact file in `durable` is reused. A damaged file,
  /// or one that is not in `durable`, is replaced, because it may come from a write whose sync
  /// failed.
  /// Errors: as `write_tensor_file`; `kCorruptData` if the bytes read back differ from those
  /// written.
  [[nodiscard]] Result<StoredObject> put_tensors(const std::string& name, const TensorMap& tensors,
                                                 const std::set<std::string>& durable);
  /// Stores `bytes` under the name `name`, otherwise as `put_tensors`.
  [[nodiscard]] Result<StoredObject> put_blob(const std::string& name, std::string_view bytes,
                                              const std::set<std::string>& durable);

  /// Reads the whole object and compares it with `ref`.
  /// Errors: `kCorruptData` naming the file if it is missing, not a regular file, too short, too
  /// long, or changed; `kUnavailable` if it cannot be read.
  [[nodiscard]] Status verify(const ObjectRef& ref) const;

  /// Reads an object that `verify` has accepted. Errors: as `verify`.
  [[nodiscard]] Result<TensorMap> read_tensors(const ObjectRef& ref) const;
  [[nodiscard]] Result<std::string> read_blob(const ObjectRef& ref) const;

  /// Removes the leftovers of a killed writer and every object that is not in `needed`. Files whose
  /// names are not those of objects are left alone.
  [[nodiscard]] Status keep_only(const std::set<std::string>& needed);

private:
  /// Passes all bytes of an object to a sink. Called once to digest and once to write.
  using Source = std::function<Status(const ByteSink&)>;

  [[nodiscard]] Result<StoredObject> put(const std::string& name, ObjectKind kind,
                                         const Source& source,
                                         const std::set<std::string>& durable);

  // Removes `name` if it is a directory, which has taken the name of an object.
  [[nodiscard]] Status remove_directory(const std::string& name);

  FileSystem& files_;
  std::filesystem::path folder_;
};

}  // namespace tidemill::storage
