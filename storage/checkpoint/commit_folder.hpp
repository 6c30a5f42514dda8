// SPDX-License-Identifier: Apache-2.0
// The reading side of a store: which commits exist, and whether they are intact.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "storage/checkpoint/checkpoint.hpp"
#include "storage/checkpoint/manifest.hpp"
#include "storage/checkpoint/object_folder.hpp"

namespace tidemill::storage {

/// What to do when the newest commit is damaged.
enum class OnDamage : std::uint8_t {
  kRefuse,           // an error that names the file and says whether an earlier commit is intact
  kUseNewestIntact,  // the newest intact commit, and a line for each that was skipped
};

/// A manifest as it is stored in the folder.
struct StoredManifest {
  CommitInfo info;
  std::string file_name;
  Manifest manifest;
};

/// The commits of a store that its owner needs.
struct FoundCommits {
  /// The commit to continue from and, if it exists and is readable, the one before it. Empty if no
  /// commit was made yet.
  std::vector<StoredManifest> commits;
  std::vector<std::string> damage;
  std::uint64_t highest_sequence = 0;
};

/// Reads the commits in `checkpoints/`. Changes nothing.
class CommitFolder {
public:
  /// Borrows `objects` for its lifetime.
  CommitFolder(std::filesystem::path folder, const ObjectFolder& objects)
      : folder_(std::move(folder)), objects_(objects) {}

  /// Returns the run id in store.json, or "" if there is no store yet.
  /// Errors: `kInvalidArgument` for a newer format; `kCorruptData`.
  [[nodiscard]] Result<std::string> read_run_id() const;
  /// Returns the text of store.json.
  [[nodiscard]] static std::string render_store(const std::string& run_id);

  /// Returns the file names of all manifests, newest first.
  /// Errors: `kCorruptData` for a file whose name only begins like that of a manifest.
  [[nodiscard]] Result<std::vector<std::string>> manifest_names() const;
  /// Reads one manifest. Errors: `kCorruptData`; `kInvalidArgument` for a newer format, and for a
  /// name that no manifest can have.
  [[nodiscard]] Result<StoredManifest> read(const std::string& file_name) const;
  /// Finds the last commit of run `run_id` and verifies all its objects.
  /// Errors: as `read`; `kCorruptData` naming the damaged file.
  [[nodiscard]] Result<FoundCommits> find(const std::string& run_id, OnDamage on_damage) const;
  /// Reads a commit, verifying every byte. Errors: `kCorruptData` naming the file.
  [[nodiscard]] Result<Checkpoint> load(const StoredManifest& commit) const;

private:
  [[nodiscard]] Result<StoredManifest> read_intact(const std::string& file_name,
                                                   const std::string& run_id) const;
  [[nodiscard]] std::string describe_next_intact(const std::vector<std::string>& names,
                                                 std::size_t from, const std::string& run_id) const;

  std::filesystem::path folder_;
  const ObjectFolder& objects_;
};

}  // namespace tidemill::storage
