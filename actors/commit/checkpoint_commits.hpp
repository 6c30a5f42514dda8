// SPDX-License-Identifier: Apache-2.0
// Keeps the commits of a run as checkpoints on disk.
#pragma once

#include <filesystem>
#include <memory>

#include "actors/commit/run_commit.hpp"
#include "storage/checkpoint/checkpoint.hpp"
#include "storage/checkpoint/checkpoint_store.hpp"
#include "storage/run_files/commit_meta.hpp"

namespace tidemill::actors {

// The names of the parts of a run's checkpoint.
inline constexpr const char* kWeightsPart = "weights";  // base tensors, or the adapter's alone
inline constexpr const char* kBestPart = "best";        // likewise, for the best evaluation
inline constexpr const char* kOptimizerPart = "optimizer";
inline constexpr const char* kStreamPart = "stream";
inline constexpr const char* kMetaPart = storage::kCommitMetaPart;
inline constexpr const char* kAdapterConfigPart = "adapter_config.json";  // of adapter runs

/// Returns a commit as the named parts of a checkpoint. Of a commit with an adapter, only the
/// adapter is stored. Its base is the model that the run started from, which the digest and
/// `inputs` name. `config` is the resolved configuration, or empty.
[[nodiscard]] storage::Checkpoint to_checkpoint(const RunCommit& commit, const RunInputs& inputs,
                                                const std::string& config = {});

/// Returns the commit that a checkpoint holds.
/// Errors: `kCorruptData` naming the part that is missing or cannot be read.
[[nodiscard]] Result<RunCommit> from_checkpoint(const storage::Checkpoint& checkpoint);

/// Returns a `CommitStore` that keeps commits in `store`. Before each commit it checks that the
/// record files in `record_directory` are as long as the commit says; if the path is empty, it does
/// not. Every commit contains `config`, the resolved configuration of the run.
[[nodiscard]] std::shared_ptr<CommitStore> make_checkpoint_commits(
    std::shared_ptr<storage::CheckpointStore> store, std::filesystem::path record_directory = {},
    std::string config = {});

/// Commits the state of the last commit again, with the marks of the records that the files in
/// `record_directory` still hold, and removes lines that cannot be read from these files. A run
/// then resumes without the lost records. Returns what is left. Errors: those of `CheckpointStore`
/// and of `storage::keep_readable_records`.
[[nodiscard]] Result<storage::RemainingRecords> accept_lost_records(
    storage::CheckpointStore& store, FileSystem& files,
    const std::filesystem::path& record_directory);

}  // namespace tidemill::actors
