// SPDX-License-Identifier: Apache-2.0
// The commits of one run directory.
//
//   RUN/lock                             the process that holds the run
//   RUN/checkpoints/store.json           format version and run id
//   RUN/checkpoints/commit-N-DIGEST.json one manifest a commit: the names and digests of its parts
//   RUN/checkpoints/objects/DIGEST.*     the parts: immutable, named by their content
//
// A commit writes its objects, each to a temporary file that is synced, renamed and made durable by
// a sync of the folder, and reads each back; then the manifest, in the same way. *The rename of the
// manifest is the commit.* Before it the run's state is the previous commit, whatever has been
// written; after it the new one. An object that an earlier commit holds already, such as base
// weights that do not change, is not written again.
//
// The last two commits are kept. What is older goes only after the new commit has been read back;
// manifests go before objects, so that no manifest ever names a file that was removed.
//
// What can be found at start: the last commit whole; or leftovers beside it of a commit that did
// not come to its rename, which are removed; or damage, which is an error naming the file. The
// commit before a damaged one is used only when the caller says so.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/file.hpp"
#include "base/result.hpp"
#include "storage/checkpoint/checkpoint.hpp"
#include "storage/checkpoint/commit_folder.hpp"
#include "storage/checkpoint/manifest.hpp"
#include "storage/checkpoint/object_folder.hpp"
#include "storage/checkpoint/run_lock.hpp"

namespace tidemill::storage {

/// How a store is opened.
struct CheckpointStoreOptions {
  /// An existing directory.
  std::filesystem::path run_directory;
  /// Names the run in every manifest, so that files of two runs cannot be mixed. Needed to make a
  /// store; when one is there, it must be the store's own or empty.
  std::string run_id;
  OnDamage on_damage = OnDamage::kRefuse;
};

/// What a commit did.
struct CommitReport {
  CommitInfo commit;
  std::size_t objects_written = 0;
  std::size_t objects_reused = 0;
  std::uint64_t bytes_written = 0;
  /// Why older files could not be removed; the commit stands all the same.
  Status cleanup;
};

/// Holds a run directory and its commits.
///
/// Threads: one call at a time, on any thread. `commit` and `load_last` block for as long as the
/// disk takes: they are meant for a worker thread, on tensors whose buffers do not change.
class CheckpointStore {
public:
  /// Locks the run directory, makes the store or finds its last commit and verifies all of it, and
  /// removes leftovers and what is older than the last two. Borrows `files` for its lifetime. A
  /// refused open changes nothing but `lock`.
  ///
  /// Errors: `kUnavailable` naming the process that holds the run; `kInvalidArgument` for a newer
  /// format, another run's id, or a bad one; `kCorruptData` naming the damaged or missing file; as
  /// `DurableFile`.
  [[nodiscard]] static Result<std::unique_ptr<CheckpointStore>> open(
      const CheckpointStoreOptions& options, FileSystem& files);

  CheckpointStore(const CheckpointStore&) = delete;
  CheckpointStore& operator=(const CheckpointStore&) = delete;

  [[nodiscard]] const std::string& run_id() const noexcept { return run_id_; }
  /// Returns the last commit; nothing before the first.
  [[nodiscard]] const std::optional<CommitInfo>& last() const noexcept { return last_; }
  /// Returns what `OnDamage::kUseCommitBefore` passed over, one line each.
  [[nodiscard]] const std::vector<std::string>& damage() const noexcept { return damage_; }

  /// Makes `state` the last commit.
  ///
  /// Errors: `kInvalidArgument` for a bad or repeated name; `kResourceExhausted` for a full disk;
  /// `kCorruptData` when the disk does not give back what was written; as `DurableFile`. After an
  /// error the previous commit stands; only when the disk failed at the manifest itself, and then
  /// refused to take it back, a restart may find either of the two. The store may be used again.
  [[nodiscard]] Result<CommitReport> commit(const Checkpoint& state);

  /// Reads the last commit, verifying every byte.
  /// Errors: `kNotFound` before the first commit; `kCorruptData` naming the file.
  [[nodiscard]] Result<Checkpoint> load_last() const;

private:
  CheckpointStore(const CheckpointStoreOptions& options, FileSystem& files, RunLock lock);

  Status make_store(const std::string& run_id);
  Status find_last(OnDamage on_damage);
  Status store_objects(const Checkpoint& state, Manifest& manifest, CommitReport& report);
  Result<StoredManifest> store_manifest(Manifest manifest);
  Status remove_manifest(const std::string& file_name);
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
  // A manifest is gone, but perhaps not durably: what it names is needed until the store is opened
  // again and finds out.
  bool a_manifest_may_return_ = false;
};

/// Reads the last commit of a run directory without locking or changing it, as one does to look at
/// a run that is going on. Errors: as `CheckpointStore::load_last`.
[[nodiscard]] Result<Checkpoint> read_last_checkpoint(const std::filesystem::path& run_directory);

}  // namespace tidemill::storage
