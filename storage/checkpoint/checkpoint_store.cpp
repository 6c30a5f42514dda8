// SPDX-License-Identifier: Apache-2.0
#include "storage/checkpoint/checkpoint_store.hpp"

#include <algorithm>
#include <limits>
#include <set>
#include <system_error>

#include "base/digest.hpp"
#include "base/text/quote.hpp"

namespace tidemill::storage {
namespace {

constexpr std::size_t kCommitsKept = 2;

std::filesystem::path commits_of(const std::filesystem::path& run_directory) {
  return run_directory / "checkpoints";
}

std::filesystem::path objects_of(const std::filesystem::path& run_directory) {
  return commits_of(run_directory) / "objects";
}

Status check_state(const Checkpoint& state) {
  if (state.step > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    return invalid_argument("step " + std::to_string(state.step) + " is too large");
  }
  for (const auto& [name, tensors] : state.tensors) {
    TIDEMILL_RETURN_IF_ERROR(check_name(name));
    if (state.blobs.contains(name)) {
      return invalid_argument(quote(name) + " names both tensors and a blob");
    }
  }
  for (const auto& [name, bytes] : state.blobs) {
    TIDEMILL_RETURN_IF_ERROR(check_name(name));
  }
  return {};
}

std::set<std::string> object_files(const std::vector<StoredManifest>& commits) {
  std::set<std::string> names;
  for (const StoredManifest& commit : commits) {
    for (const ObjectRef& object : commit.manifest.objects) {
      names.insert(object.file_name());
    }
  }
  return names;
}

bool is_one_of(const std::vector<StoredManifest>& commits, const std::string& file_name) {
  return std::any_of(commits.begin(), commits.end(),
                     [&](const StoredManifest& commit) { return commit.file_name == file_name; });
}

}  // namespace

CheckpointStore::CheckpointStore(const CheckpointStoreOptions& options, FileSystem& files,
                                 RunLock lock)
    : files_(files),
      lock_(std::move(lock)),
      folder_(commits_of(options.run_directory)),
      objects_(files, objects_of(options.run_directory)),
      commits_(folder_, objects_) {}

Result<std::unique_ptr<CheckpointStore>> CheckpointStore::open(
    const CheckpointStoreOptions& options, FileSystem& files) {
  if (!options.run_id.empty()) {
    TIDEMILL_RETURN_IF_ERROR(check_name(options.run_id).with_context("run id"));
  }
  TIDEMILL_ASSIGN_OR_RETURN(RunLock lock, RunLock::acquire(options.run_directory));
  std::unique_ptr<CheckpointStore> store(new CheckpointStore(options, files, std::move(lock)));
  TIDEMILL_ASSIGN_OR_RETURN(store->run_id_, store->commits_.read_run_id());
  if (store->run_id_.empty()) {
    TIDEMILL_RETURN_IF_ERROR(store->create_store(options.run_id));
  } else if (!options.run_id.empty() && options.run_id != store->run_id_) {
    return invalid_argument(store->folder_.string() + ": holds the run " + store->run_id_ +
                            ", not " + options.run_id);
  }
  TIDEMILL_RETURN_IF_ERROR(store->find_last(options.on_damage));
  if (store->damage_.empty()) {
    TIDEMILL_RETURN_IF_ERROR(store->remove_leftovers());
  }
  return store;
}

Status CheckpointStore::create_store(const std::string& run_id) {
  if (run_id.empty()) {
    return {Errc::kNotFound, folder_.string() + ": no checkpoints here"};
  }
  TIDEMILL_RETURN_IF_ERROR(make_directory(files_, folder_));
  TIDEMILL_ASSIGN_OR_RETURN(const std::vector<std::string> names, commits_.manifest_names());
  if (!names.empty()) {
    return corrupt_data((folder_ / "store.json").string() + ": missing, but there are commits");
  }
  TIDEMILL_RETURN_IF_ERROR(make_directory(files_, folder_ / "objects"));
  TIDEMILL_RETURN_IF_ERROR(
      write_file(files_, folder_ / "store.json", CommitFolder::render_store(run_id)));
  run_id_ = run_id;
  return {};
}

Status CheckpointStore::find_last(OnDamage on_damage) {
  TIDEMILL_ASSIGN_OR_RETURN(FoundCommits found, commits_.find(run_id_, on_damage));
  next_sequence_ = found.highest_sequence + 1;
  kept_ = std::move(found.commits);
  damage_ = std::move(found.damage);
  if (!kept_.empty()) {
    last_ = kept_.front().info;
  }
  return {};
}

Result<CommitReport> CheckpointStore::commit(const Checkpoint& state) {
  TIDEMILL_RETURN_IF_ERROR(check_state(state));
  CommitReport report;
  Manifest manifest;
  manifest.run_id = run_id_;
  manifest.sequence = next_sequence_++;
  manifest.step = state.step;
  manifest.previous = last_ ? last_->digest : "";
  if (Status stored = store_objects(state, manifest, report); !stored.ok()) {
    (void)remove_objects();  // frees the space; a failure here does no harm
    return stored;
  }
  auto committed = store_manifest(std::move(manifest));
  if (!committed.ok()) {
    (void)remove_objects();
    return committed.status();
  }
  report.commit = committed.value().info;
  last_ = committed.value().info;
  kept_.insert(kept_.begin(), std::move(committed).value());
  kept_.resize(std::min(kept_.size(), kCommitsKept));
  damage_.clear();
  report.cleanup = remove_leftovers();
  return report;
}

Status CheckpointStore::store_objects(const Checkpoint& state, Manifest& manifest,
                                      CommitReport& report) {
  // Only objects that a commit names are known to be durable under their names.
  const std::set<std::string> durable = object_files(kept_);
  const auto take = [&](Result<StoredObject> stored) -> Status {
    TIDEMILL_RETURN_IF_ERROR(stored.status());
    const StoredObject& object = stored.value();
    (object.reused ? report.objects_reused : report.objects_written) += 1;
    report.bytes_written += object.reused ? 0 : object.ref.size_bytes;
    manifest.objects.push_back(object.ref);
    return {};
  };
  for (const auto& [name, tensors] : state.tensors) {
    TIDEMILL_RETURN_IF_ERROR(take(objects_.put_tensors(name, tensors, durable)));
  }
  for (const auto& [name, bytes] : state.blobs) {
    TIDEMILL_RETURN_IF_ERROR(take(objects_.put_blob(name, bytes, durable)));
  }
  return {};
}

Result<StoredManifest> CheckpointStore::store_manifest(Manifest manifest) {
  const std::string text = render_manifest(manifest);
  const std::string digest = digest_bytes(std::as_bytes(std::span(text)));
  const std::string file_name = manifest_file_name({manifest.sequence, digest});
  const Status written = write_file(files_, folder_ / file_name, text);
  if (written.ok()) {
    if (auto read_back = commits_.read(file_name); read_back.ok()) {
      return read_back;
    } else {
      (void)remove_manifest(file_name);
      return read_back.status();
    }
  }
  // The manifest may exist without being durable, but a failed commit must not appear later.
  (void)remove_manifest(file_name);
  return written;
}

Status CheckpointStore::remove_manifest(const std::string& file_name) {
  const std::filesystem::path path = folder_ / file_name;
  Status removed = remove_file(files_, path);
  if (removed.code() == Errc::kNotFound) {
    return {};  // it never got that name
  }
  std::error_code error;
  if (!removed.ok() && !std::filesystem::exists(path, error)) {
    manifest_may_reappear_ = true;
  }
  return removed;
}

Status CheckpointStore::remove_leftovers() {
  TIDEMILL_RETURN_IF_ERROR(remove_temporary_files(files_, folder_));
  TIDEMILL_RETURN_IF_ERROR(remove_older());
  return remove_objects();
}

Status CheckpointStore::remove_older() {
  TIDEMILL_ASSIGN_OR_RETURN(const std::vector<std::string> names, commits_.manifest_names());
  for (const std::string& name : names) {
    if (!is_one_of(kept_, name)) {
      TIDEMILL_RETURN_IF_ERROR(remove_manifest(name));
    }
  }
  return {};
}

Status CheckpointStore::remove_objects() {
  TIDEMILL_ASSIGN_OR_RETURN(const std::vector<std::string> names, commits_.manifest_names());
  const bool all_known = std::all_of(names.begin(), names.end(), [this](const std::string& name) {
    return is_one_of(kept_, name);
  });
  if (manifest_may_reappear_ || !all_known) {
    return {};  // another manifest may still exist and need its objects
  }
  return objects_.keep_only(object_files(kept_));
}

Result<Checkpoint> CheckpointStore::load_last() const {
  if (kept_.empty()) {
    return Status(Errc::kNotFound, folder_.string() + ": no commit yet");
  }
  return commits_.load(kept_.front());
}

Result<std::string> CheckpointStore::read_last_blob(const std::string& name) const {
  if (kept_.empty()) {
    return Status(Errc::kNotFound, folder_.string() + ": no commit yet");
  }
  for (const ObjectRef& object : kept_.front().manifest.objects) {
    if (object.name == name && object.kind == ObjectKind::kBlob) {
      TIDEMILL_RETURN_IF_ERROR(objects_.verify(object).with_context(name));
      return objects_.read_blob(object);
    }
  }
  return std::string();
}

Result<Checkpoint> read_last_checkpoint(const std::filesystem::path& run_directory) {
  PosixFileSystem files;
  const std::filesystem::path folder = commits_of(run_directory);
  const ObjectFolder objects(files, objects_of(run_directory));
  const CommitFolder commits(folder, objects);
  TIDEMILL_ASSIGN_OR_RETURN(const std::string run_id, commits.read_run_id());
  if (run_id.empty()) {
    return Status(Errc::kNotFound, folder.string() + ": no checkpoints here");
  }
  // The run may commit twice during the reading and so remove the files being read. If so, retry.
  constexpr int kAttempts = 10;
  for (int attempt = 1;; ++attempt) {
    TIDEMILL_ASSIGN_OR_RETURN(const std::vector<std::string> before, commits.manifest_names());
    auto found = commits.find(run_id, OnDamage::kRefuse);
    Status outcome = found.status();
    if (found.ok() && found.value().commits.empty()) {
      return Status(Errc::kNotFound, folder.string() + ": no commit yet");
    }
    if (found.ok()) {
      auto state = commits.load(found.value().commits.front());
      if (state.ok()) {
        return state;
      }
      outcome = state.status();
    }
    TIDEMILL_ASSIGN_OR_RETURN(const std::vector<std::string> after, commits.manifest_names());
    if (after == before || attempt == kAttempts) {
      return outcome;
    }
  }
}

}  // namespace tidemill::storage
