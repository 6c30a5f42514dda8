// SPDX-License-Identifier: Apache-2.0
#include "storage/checkpoint/commit_folder.hpp"

#include <algorithm>
#include <system_error>

#include "base/files/file.hpp"
#include "base/json/fields.hpp"
#include "base/json/json.hpp"

namespace tidemill::storage {
namespace {

constexpr std::uint64_t kMaxStoreBytes = 64U << 10U;
constexpr std::uint64_t kMaxManifestBytes = 64U << 20U;

Result<std::string> read_text(const std::filesystem::path& path, std::uint64_t max_bytes) {
  TIDEMILL_ASSIGN_OR_RETURN(const ReadableFile file, open_stored_file(path));
  if (file.size_bytes() > max_bytes) {
    return corrupt_data(path.string() + ": damaged: " + std::to_string(file.size_bytes()) +
                        " bytes long");
  }
  std::string text(file.size_bytes(), '\0');
  TIDEMILL_RETURN_IF_ERROR(file.read_at(0, std::as_writable_bytes(std::span(text))));
  return text;
}

// Whether `commit` follows one of the `older` ones. True if there are none, as at the first commit.
bool follows_one_of(const StoredManifest& commit, const std::vector<std::string>& older) {
  return older.empty() || std::any_of(older.begin(), older.end(), [&](const std::string& name) {
           return parse_manifest_name(name)->digest == commit.manifest.previous;
         });
}

}  // namespace

std::string CommitFolder::render_store(const std::string& run_id) {
  return Json(Json::Object{{"format", kCheckpointFormat}, {"run", run_id}}).to_text();
}

Result<std::string> CommitFolder::read_run_id() const {
  const std::filesystem::path path = folder_ / "store.json";
  std::error_code error;
  if (std::filesystem::symlink_status(path, error).type() ==
      std::filesystem::file_type::not_found) {
    return std::string();
  }
  TIDEMILL_ASSIGN_OR_RETURN(const std::string text, read_text(path, kMaxStoreBytes));
  const auto json = parse_json(text);
  if (!json.ok()) {
    return corrupt_data(path.string() + ": damaged: " + json.status().message());
  }
  JsonFields fields(json.value(), path.string());
  const std::int64_t format = fields.required_integer("format", {.min = 1});
  const std::string run_id = fields.string("run").value_or("");
  if (fields.status().ok() && format > kCheckpointFormat) {
    return invalid_argument(path.string() + ": made by a newer version of tidemill (format " +
                            std::to_string(format) + "; this one reads up to " +
                            std::to_string(kCheckpointFormat) + ")");
  }
  if (run_id.empty() || text != render_store(run_id)) {
    return corrupt_data(path.string() + ": damaged");
  }
  return run_id;
}

Result<std::vector<std::string>> CommitFolder::manifest_names() const {
  TIDEMILL_ASSIGN_OR_RETURN(std::vector<std::string> names, list_directory(folder_));
  std::erase_if(names, [](const std::string& name) { return !name.starts_with("commit-"); });
  for (const std::string& name : names) {
    if (!parse_manifest_name(name)) {
      return corrupt_data((folder_ / name).string() + ": not the name of a commit");
    }
  }
  std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    return parse_manifest_name(a)->sequence > parse_manifest_name(b)->sequence;
  });
  return names;
}

Result<StoredManifest> CommitFolder::read(const std::string& file_name) const {
  const std::filesystem::path path = folder_ / file_name;
  const auto name = parse_manifest_name(file_name);
  if (!name.has_value()) {
    return invalid_argument(path.string() + ": not the manifest of a commit");
  }
  TIDEMILL_ASSIGN_OR_RETURN(const std::string text, read_text(path, kMaxManifestBytes));
  TIDEMILL_ASSIGN_OR_RETURN(Manifest manifest, parse_manifest(text, *name, path.string()));
  CommitInfo info{name->sequence, manifest.step, name->digest};
  return StoredManifest{std::move(info), file_name, std::move(manifest)};
}

Result<StoredManifest> CommitFolder::read_intact(const std::string& file_name,
                                                 const std::string& run_id) const {
  TIDEMILL_ASSIGN_OR_RETURN(StoredManifest commit, read(file_name));
  if (commit.manifest.run_id != run_id) {
    return corrupt_data((folder_ / file_name).string() + ": belongs to the run " +
                        commit.manifest.run_id + ", not to " + run_id);
  }
  for (const ObjectRef& object : commit.manifest.objects) {
    TIDEMILL_RETURN_IF_ERROR(objects_.verify(object).with_context(object.name));
  }
  return commit;
}

std::string CommitFolder::describe_next_intact(const std::vector<std::string>& names,
                                               std::size_t from, const std::string& run_id) const {
  for (std::size_t i = from; i < names.size(); ++i) {
    if (const auto commit = read_intact(names[i], run_id); commit.ok()) {
      return "; an earlier commit, of step " + std::to_string(commit.value().info.step) +
             ", is intact";
    }
  }
  return "; no earlier commit is intact";
}

Result<FoundCommits> CommitFolder::find(const std::string& run_id, OnDamage on_damage) const {
  FoundCommits found;
  TIDEMILL_ASSIGN_OR_RETURN(const std::vector<std::string> names, manifest_names());
  for (std::size_t i = 0; i < names.size(); ++i) {
    found.highest_sequence =
        std::max(found.highest_sequence, parse_manifest_name(names[i])->sequence);
    const std::vector<std::string> older(names.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                                         names.end());
    auto commit = read_intact(names[i], run_id);
    if (commit.ok() && !follows_one_of(commit.value(), older)) {
      commit = corrupt_data((folder_ / names[i]).string() +
                            ": does not follow any earlier commit in this folder");
    }
    if (commit.ok()) {
      const std::string previous = commit.value().manifest.previous;
      found.commits.push_back(std::move(commit).value());
      for (const std::string& name : older) {
        if (parse_manifest_name(name)->digest != previous) {
          continue;
        }
        if (auto before = read(name); before.ok()) {
          found.commits.push_back(std::move(before).value());
        }
      }
      return found;
    }
    // A damaged commit may be skipped on request. Any other failure is returned, because the
    // commit may be intact: its format may be newer, or the file unreadable for the moment.
    if (commit.status().code() != Errc::kCorruptData) {
      return commit.status();
    }
    if (on_damage == OnDamage::kRefuse) {
      return corrupt_data(commit.status().message() + describe_next_intact(names, i + 1, run_id));
    }
    found.damage.push_back(commit.status().message());
  }
  if (!found.damage.empty()) {
    return corrupt_data(found.damage.front() + "; no earlier commit is intact");
  }
  return found;
}

Result<Checkpoint> CommitFolder::load(const StoredManifest& commit) const {
  Checkpoint state;
  state.step = commit.info.step;
  for (const ObjectRef& object : commit.manifest.objects) {
    TIDEMILL_RETURN_IF_ERROR(objects_.verify(object).with_context(object.name));
    if (object.kind == ObjectKind::kTensors) {
      TIDEMILL_ASSIGN_OR_RETURN(state.tensors[object.name], objects_.read_tensors(object));
    } else {
      TIDEMILL_ASSIGN_OR_RETURN(state.blobs[object.name], objects_.read_blob(object));
    }
  }
  return state;
}

}  // namespace tidemill::storage
