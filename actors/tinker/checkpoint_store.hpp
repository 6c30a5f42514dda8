// SPDX-License-Identifier: Apache-2.0
// Where the checkpoints and runs of Tinker's API are kept.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "actors/tinker/backend.hpp"
#include "base/files/file.hpp"

namespace tidemill::actors::tinker {

/// What is known of a checkpoint without opening it.
struct CheckpointInfo {
  CheckpointPath path;
  std::string base_model;
  LoraSettings lora;
  bool has_optimizer = false;
  std::int64_t created = 0;                // Unix time, seconds
  std::optional<std::int64_t> expires_at;  // Unix time, seconds; absent: never
  std::int64_t size_bytes = 0;
  Metadata user_metadata;
};

/// A training run: one model that a client has trained, open or not.
struct RunInfo {
  std::string id;
  std::string base_model;
  LoraSettings lora;
  std::int64_t last_request = 0;  // Unix time, seconds
  Metadata user_metadata;
};

/// A file of an external checkpoint.
struct CheckpointFile {
  std::string name;
  std::int64_t size_bytes = 0;
};

/// A checkpoint, a run or another entry of the store that cannot be read.
struct DamagedEntry {
  /// The text of a checkpoint's path, or the id of a run; empty if the entry is neither.
  std::string id;
  std::string reason;  // names the entry
};

/// What a store holds of one kind.
template <class T>
struct Listing {
  std::vector<T> entries;
  std::vector<DamagedEntry> damaged;
};

/// Keeps checkpoints. They outlive sessions and the server.
///
/// Threads: one call at a time. Calls block on disk I/O, so call them at a port.
class CheckpointStore {
public:
  CheckpointStore() = default;
  CheckpointStore(const CheckpointStore&) = delete;
  CheckpointStore& operator=(const CheckpointStore&) = delete;
  virtual ~CheckpointStore() = default;

  /// Returns all checkpoints and runs. Entries that cannot be read hide no others.
  /// Errors: `kNotFound`, `kInvalidArgument`, `kResourceExhausted` or `kUnavailable` if the store
  /// cannot be listed.
  [[nodiscard]] virtual Result<Listing<CheckpointInfo>> checkpoints() = 0;
  [[nodiscard]] virtual Result<Listing<RunInfo>> runs() = 0;
  /// Adds or replaces the description of a run.
  /// Errors: `kResourceExhausted` for a full disk; `kNotFound`, `kInvalidArgument` or
  /// `kUnavailable` for another failure of the file system.
  [[nodiscard]] virtual Status put_run(const RunInfo& run) = 0;
  /// Removes the description of a run. Does nothing if the run has checkpoints, or is not there.
  /// Errors: `kInvalidArgument`, `kResourceExhausted`, `kUnavailable`.
  [[nodiscard]] virtual Status remove_run(const std::string& id) = 0;

  /// Stores a checkpoint, replacing the one of its path, and returns its size in bytes. If there
  /// are recipients, the files are encrypted to them, and their names end with ".age". If `put`
  /// fails, the path keeps its previous checkpoint, if any, or has the new one. `get` may not find
  /// the previous checkpoint until the next `put` for the same run or the next call of
  /// `checkpoints`, which restores it.
  /// Errors: as `put_run`; `kInvalidArgument` if the tensors are not those that `info.lora` has on
  /// the model.
  [[nodiscard]] virtual Result<std::int64_t> put(const CheckpointInfo& info, const JobState& state,
                                                 std::span<const AgeRecipient> recipients) = 0;
  /// Changes when a checkpoint expires.
  /// Errors: `kNotFound`, `kCorruptData`; otherwise as `put_run`.
  [[nodiscard]] virtual Status set_expiry(const CheckpointPath& path,
                                          std::optional<std::int64_t> expires_at) = 0;
  /// Reads a checkpoint. Errors: `kNotFound`, `kCorruptData`.
  [[nodiscard]] virtual Result<JobState> get(const CheckpointPath& path, bool with_optimizer) = 0;
  /// Removes a checkpoint. Errors: `kNotFound`; otherwise as `remove_run`.
  [[nodiscard]] virtual Status remove(const CheckpointPath& path) = 0;

  /// Lists the files of a checkpoint's adapter, in the PEFT layout, and opens one.
  /// Errors: `kNotFound` if there is no such checkpoint or file.
  [[nodiscard]] virtual Result<std::vector<CheckpointFile>> files(const CheckpointPath& path) = 0;
  [[nodiscard]] virtual Result<std::shared_ptr<const ReadableFile>> open_file(
      const CheckpointPath& path, const std::string& name) = 0;
};

}  // namespace tidemill::actors::tinker
