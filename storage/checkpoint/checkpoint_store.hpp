// SPDX-License-Identifier: Apache-2.0
// The commits of one run directory.
//
//   RUN/lock                             locked by the process that uses the run
//   RUN/checkpoints/store.json           format version and run id
//   RUN/checkpoints/commit-N-DIGEST.json one manifest per commit: names and digests of its parts
//   RUN/checkpoints/objects/DIGEST.*     the parts: immutable files, named by their content
//
// Writing. A commit first writes its objects. Each goes to a temporary file, which is synced and
// renamed; a sync of the directory makes the new name durable, and the object is read back. Then
// the manifest is written in the same way. *The rename of the manifest is the commit.* Before it,
// the state of the run is the previous commit, whatever has been written. After it, the state is
// the new commit. An object that an earlier commit already contains, such as base weights that do
// not change, is not written again.
//
// Removing. The last two commits are kept. Older ones are removed only after the new commit has
// been read back. Manifests are removed before objects, so that no manifest ever names a removed
// file.
//
// Opening. A start verifies the last commit, and then removes the leftovers of a commit that did
// not reach its rename. If the last commit is damaged, the start fails with an error that names the
// damaged file. An earlier commit is used only if the caller asks for it
// (`OnDamage::kUseNewestIntact`).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/files/file.hpp"
#include "base/result.hpp"
#include "storage/checkpoint/checkpoint.hpp"
#include "storage/checkpoint/commit_folder.hpp"
#include "storage/checkpoint/manifest.hpp"
#include "storage/checkpoint/object_folder.hpp"
#include "storage/checkpoint/run_lock.hpp"

namespace tidemill::storage {

/// Configures a `CheckpointStore`.
struct CheckpointStoreOptions {
  /// An existing directory.
  std::filesystem::path run_directory;
  /// Names the run in every manifest, so that files of two runs cannot be mixed up. Required to
  /// create a store. For an existing store, it must be the store's own id or empty.
  std::string run_id;
  OnDamage on_damage = OnDamage::kRefuse;
};

/// The result of a commit.
struct CommitReport {
  CommitInfo commit;
  std::size_t objects_written = 0;
  std::size_t objects_reused = 0;
  std::uint64_t bytes_written = 0;
  /// The error if older files could not be removed. The commit is valid regardless.
  Status cleanup;
};

/// Locks a run directory and manages its commits.
///
/// Threads: one call at a time, on any thread. `commit` and `load_last` block for as long as the
/// disk takes. Call them on a worker thread, with tensors whose buffers do not change.
class CheckpointStore {
public:
  /// Locks the run directory. Then creates the store, or finds its last commit and verifies all of
  /// it. Removes leftovers and all commits but the last two; if a damaged commit was skipped, the
  /// next commit removes them. Borrows `files` for its lifetime. An open that is refused changes
  /// only `lock`.
  ///
  /// Errors: `kUnavailable` naming the process that holds the run; `kInvalidArgument` for a newer
  /// format, the id of another run, or an invalid id; `kNotFound` if there is no store and `run_id`
  /// is empty; `kCorruptData` naming the damaged or missing file; as `DurableFile`.
  [[nodiscard]] static Result<std::unique_ptr<CheckpointStore>> open(
      const CheckpointStoreOptions& options, FileSystem& files);

  CheckpointStore(const CheckpointStore&) = delete;
  CheckpointStore& operator=(const CheckpointStore&) = delete;

  [[nodiscard]] const std::string& run_id() const noexcept { return run_id_; }
  /// Returns the last commit, or nothing if there is none yet.
  [[nodiscard]] const std::optional<CommitInfo>& last() const noexcept { return last_; }
  /// Returns the damage that `OnDamage::kUseNewestIntact` skipped, one line each.
  [[nodiscard]] const std::vector<std::string>& damage() const noexcept { return damage_; }

  /// Makes `state` the last commit.
  ///
  /// Errors: `kInvalidArgument` for an invalid or repeated name; `kResourceExhausted` for a full
  /// disk; `kCorruptData` if the disk does not return what was written; as `DurableFile`. After an
  /// error the previous commit is still the last one, and the store may be used again. There is one
  /// exception: if both writing the manifest and removing it again fail, a restart may find either
  /// commit.
  [[nodiscard]] Result<CommitReport> commit(const Checkpoint& state);

  /// Reads the last commit, verifying every byte.
  /// Errors: `kNotFound` before the first commit; `kCorruptData` naming the file.
  [[nodiscard]] Result<Checkpoint> load_last() const;

  /// Reads the blob `name` of the last commit, verifying every byte of it. Returns an empty string
  /// if the commit has none. Errors: as `load_last`.
  [[nodiscard]] Result<std::string> read_last_blob(const std::string& name) const;

private:
  CheckpointStore(const CheckpointStoreOptions& options, FileSystem& files, RunLock lock);

  Status create_store(const std::string& run_id);
  Status find_last(OnDamage on_damage);
  Status store_objects(const Checkpoint& state, Manifest& manifest, CommitReport& report);
  Result<StoredManifest> store_manifest(Manifest manifest);
  Status remove_manifest(const std::string& file_name);
  Status remove_leftovers();
  Status remove_older();
  Status remove_objects();

  FileSystem& files_;
  RunLock lock_;
  std::filesystem::path folder_;
  ObjectFolder objects_;
  CommitFolder commits_;
  std::string run_id_;
  std::optional<CommitInfo> last_;
  std::vector<StoredManifest> kept_;  // newest first; at most two
  std::vector<std::string> damage_;
  std::uint64_t next_sequence_ = 1;
  // A manifest was removed, but perhaps not durably. Its objects are kept until the store is opened
  // again, which shows whether it is gone.
  bool manifest_may_reappear_ = false;
};

/// Reads the last commit of a run directory without locking or changing it, for example to inspect
/// a run in progress. Errors: as `CheckpointStore::load_last`.
[[nodiscard]] Result<Checkpoint> read_last_checkpoint(const std::filesystem::path& run_directory);

}  // namespace tidemill::storage
