// SPDX-License-Identifier: Apache-2.0
#include "actors/tinker/disk_store.hpp"

#include <algorithm>
#include <utility>

#include "actors/tinker/lora_config.hpp"
#include "base/digest.hpp"
#include "base/files/tensor_file.hpp"
#include "base/files/without_directory.hpp"
#include "base/json/fields.hpp"
#include "base/tensor/float_tensor.hpp"
#include "engines/formats/adapter_files.hpp"
#include "storage/checkpoint/run_lock.hpp"

namespace tidemill::actors::tinker {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxJsonBytes = std::uint64_t{1} << 20U;
constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 32U;
constexpr const char* kInfoFile = "checkpoint.json";
constexpr const char* kRunFile = "run.json";
constexpr const char* kOptimizerFile = "optimizer.safetensors";
constexpr const char* kIncomplete = "incomplete";
constexpr const char* kReplaced = "replaced";
constexpr const char* kRemoved = "removed";
constexpr std::string_view kEncrypted = ".age";
constexpr std::array kKinds = {CheckpointKind::kTraining, CheckpointKind::kSampler,
                               CheckpointKind::kExternal};

std::string folder_of(std::string run_id) {
  std::replace(run_id.begin(), run_id.end(), ':', '.');
  return run_id;
}

// Returns the id of the run whose folder has this name.
std::string run_of(std::string folder) {
  std::replace(folder.begin(), folder.end(), '.', ':');
  return folder;
}

// Whether a folder has a name that `folder_of` gives: "SESSION.train.NUMBER".
bool is_name_of_run(std::string_view folder) {
  constexpr std::string_view kMiddle = ".train.";
  const auto all_of = [](std::string_view text, std::string_view allowed) {
    return !text.empty() && text.find_first_not_of(allowed) == std::string_view::npos;
  };
  const std::size_t middle = folder.find(kMiddle);
  return middle != std::string_view::npos && all_of(folder.substr(0, middle), "0123456789abcdef") &&
         all_of(folder.substr(middle + kMiddle.size()), "0123456789");
}

// Whether a file of a checkpoint is one of its adapter, encrypted or not.
bool is_adapter_file(std::string_view name) {
  if (name.ends_with(kEncrypted)) {
    name.remove_suffix(kEncrypted.size());
  }
  const auto names = engines::exported_adapter_names();
  return std::find(names.begin(), names.end(), name) != names.end();
}

// -- JSON -----------------------------------------------------------------------------------------

Json lora_json(const LoraSettings& lora) {
  return Json::Object{{"rank", static_cast<std::int64_t>(lora.rank)},
                      {"train_attn", lora.train_attn},
                      {"train_mlp", lora.train_mlp},
                      {"train_unembed", lora.train_unembed}};
}

LoraSettings read_lora(JsonFields& fields, const Json& object, const std::string& location) {
  LoraSettings lora;
  const Json* value = object.find("lora");
  if (value == nullptr) {
    fields.refuse("lora", "missing");
    return lora;
  }
  JsonFields members(*value, location, "lora.");
  lora.rank = static_cast<std::int32_t>(members.required_integer("rank", {1, 1 << 20}));
  lora.train_attn = members.boolean("train_attn").value_or(false);
  lora.train_mlp = members.boolean("train_mlp").value_or(false);
  lora.train_unembed = members.boolean("train_unembed").value_or(false);
  fields.refuse(members.status());
  return lora;
}

Json metadata_json(const Metadata& metadata) {
  Json::Object object;
  for (const auto& [name, value] : metadata) {
    object.push_back({name, value});
  }
  return object;
}

Metadata read_metadata(const Json& object) {
  Metadata out;
  const Json* value = object.find("user_metadata");
  const Json::Object* members = value == nullptr ? nullptr : value->if_object();
  for (std::size_t i = 0; members != nullptr && i < members->size(); ++i) {
    const std::string* text = (*members)[i].value.if_string();
    out[(*members)[i].name] = text == nullptr ? "" : *text;
  }
  return out;
}

// What a checkpoint's file holds besides its description.
struct Digests {
  std::string base;
  std::string adapter;
  std::string optimizer;  // empty if there is no state, or an earlier version has written it
};

Json info_json(const CheckpointInfo& info, const Digests& digests) {
  return Json::Object{{"path", to_text(info.path)},
                      {"base_model", info.base_model},
                      {"lora", lora_json(info.lora)},
                      {"has_optimizer", info.has_optimizer},
                      {"created", info.created},
                      {"expires_at", info.expires_at ? Json(*info.expires_at) : Json()},
                      {"size_bytes", info.size_bytes},
                      {"user_metadata", metadata_json(info.user_metadata)},
                      {"base_digest", digests.base},
                      {"adapter_digest", digests.adapter},
                      {"optimizer_digest", digests.optimizer}};
}

// Reads a file of this store. Errors: `kNotFound`; `kCorruptData` naming the file.
Result<Json> read_json(const fs::path& file) {
  Result<std::string> text = read_text_file(file, kMaxJsonBytes);
  if (!text.ok()) {
    return text.status().code() == Errc::kNotFound
               ? text.status()
               : Status(Errc::kCorruptData, text.status().message());
  }
  Result<Json> json = parse_json(text.value());
  return json.ok() ? std::move(json)
                   : Status(Errc::kCorruptData, file.string() + ": " + json.status().message());
}

Result<CheckpointInfo> read_info(const fs::path& file, Digests& digests) {
  TIDEMILL_ASSIGN_OR_RETURN(const Json json, read_json(file));
  JsonFields fields(json, file.string());
  CheckpointInfo info;
  Result<CheckpointPath> path = parse_checkpoint_path(fields.string("path").value_or(""));
  if (!path.ok()) {
    fields.refuse("path", path.status().message());
  } else {
    info.path = std::move(path).value();
  }
  info.base_model = fields.string("base_model").value_or("");
  info.lora = read_lora(fields, json, file.string());
  info.has_optimizer = fields.boolean("has_optimizer").value_or(false);
  info.created = fields.required_integer("created", {0});
  info.expires_at = fields.integer("expires_at", {0});
  info.size_bytes = fields.integer("size_bytes", {0}).value_or(0);
  info.user_metadata = read_metadata(json);
  digests = {fields.string("base_digest").value_or(""),
             fields.string("adapter_digest").value_or(""),
             fields.string("optimizer_digest").value_or("")};
  if (!fields.status().ok()) {
    return Status(Errc::kCorruptData, fields.status().message());
  }
  return info;
}

Result<RunInfo> read_run(const fs::path& file) {
  TIDEMILL_ASSIGN_OR_RETURN(const Json json, read_json(file));
  JsonFields fields(json, file.string());
  RunInfo run;
  run.id = fields.string("id").value_or("");
  run.base_model = fields.string("base_model").value_or("");
  run.lora = read_lora(fields, json, file.string());
  run.last_request = fields.required_integer("last_request", {0});
  run.user_metadata = read_metadata(json);
  if (!fields.status().ok()) {
    return Status(Errc::kCorruptData, fields.status().message());
  }
  return run;
}

// Checks the state of an optimizer. Without a digest, it can only be checked for values that no
// optimizer has.
Status check_optimizer(const TensorMap& tensors, const std::string& digest) {
  if (!digest.empty()) {
    return digest == digest_tensors(tensors)
               ? Status()
               : Status(Errc::kCorruptData, "the digest of the state does not match");
  }
  for (const auto& [name, tensor] : tensors) {
    if (is_weight_type(tensor.dtype) && !check_finite(tensor).ok()) {
      return {Errc::kCorruptData, "a value is not finite"};
    }
  }
  return {};
}

// -- the store ------------------------------------------------------------------------------------

class DiskStore final : public CheckpointStore {
public:
  DiskStore(FileSystem& files, fs::path root, engines::ModelConfig model, storage::RunLock lock)
      : files_(files), root_(std::move(root)), model_(std::move(model)), lock_(std::move(lock)) {}

  // What clients see of errors names no path of the server.
  Result<Listing<CheckpointInfo>> checkpoints() override { return shown(list_checkpoints()); }
  Result<Listing<RunInfo>> runs() override { return shown(list_runs()); }
  Status put_run(const RunInfo& run) override { return without_directory(write_run(run), root_); }
  Status remove_run(const std::string& id) override {
    for (const CheckpointKind kind : kKinds) {
      const auto names = list_directory(root_ / folder_of(id) / kind_segment(kind));
      if (names.ok() && !names.value().empty()) {
        return {};
      }
    }
    const Status removed = remove_tree(files_, root_, folder_of(id));
    return removed.code() == Errc::kNotFound ? Status() : without_directory(removed, root_);
  }

  Result<std::int64_t> put(const CheckpointInfo& info, const JobState& state,
                           std::span<const AgeRecipient> recipients) override {
    const fs::path run = root_ / folder_of(info.path.run_id);
    Result<std::int64_t> size = write(run, info, state, recipients);
    if (!size.ok()) {
      // The disk may be full: gives back what was written. If that fails too, the next call does
      // it.
      (void)clear(run, kIncomplete);
    }
    return shown(std::move(size));
  }

  Status set_expiry(const CheckpointPath& path, std::optional<std::int64_t> expires_at) override {
    return shown(write_expiry(path, expires_at), path);
  }
  Result<JobState> get(const CheckpointPath& path, bool with_optimizer) override {
    return shown(read(path, with_optimizer), path);
  }
  Status remove(const CheckpointPath& path) override { return shown(remove_files(path), path); }
  Result<std::vector<CheckpointFile>> files(const CheckpointPath& path) override {
    return shown(list_files(path), path);
  }

  Result<std::shared_ptr<const ReadableFile>> open_file(const CheckpointPath& path,
                                                        const std::string& name) override {
    if (!is_adapter_file(name)) {
      return Status(Errc::kNotFound, "the checkpoint has no file of this name");
    }
    Result<ReadableFile> file = ReadableFile::open(folder(path) / name);
    if (!file.ok()) {
      return shown(file.status(), path);
    }
    return std::make_shared<const ReadableFile>(std::move(file).value());
  }

private:
  [[nodiscard]] Status shown(const Status& status, const CheckpointPath& path) const {
    return status.code() == Errc::kNotFound
               ? Status(Errc::kNotFound, to_text(path) + ": the server no longer has its files")
               : without_directory(status, root_);
  }
  template <class T>
  [[nodiscard]] Result<T> shown(Result<T> result, const CheckpointPath& path) const {
    return result.ok() ? std::move(result) : shown(result.status(), path);
  }
  template <class T>
  [[nodiscard]] Result<T> shown(Result<T> result) const {
    return result.ok() ? std::move(result) : without_directory(result.status(), root_);
  }

  [[nodiscard]] DamagedEntry damaged(std::string id, const Status& status) const {
    return {std::move(id), without_directory(status, root_).message()};
  }

  Result<Listing<CheckpointInfo>> list_checkpoints() {
    Listing<CheckpointInfo> out;
    TIDEMILL_ASSIGN_OR_RETURN(const std::vector<std::string> runs, run_folders());
    for (const std::string& run : runs) {
      if (!is_run(run)) {
        out.damaged.push_back({"", run + ": is not the folder of a training run"});
        continue;
      }
      if (const Status status = complete_replacement(root_ / run); !status.ok()) {
        out.damaged.push_back(damaged("", status));
      }
      for (const CheckpointKind kind : kKinds) {
        list_kind(run, kind, out);
      }
    }
    return out;
  }

  // Adds the checkpoints of one kind that a folder of a run has.
  void list_kind(const std::string& run, CheckpointKind kind, Listing<CheckpointInfo>& out) {
    const fs::path folder = root_ / run / kind_segment(kind);
    const Result<std::vector<std::string>> names = list_directory(folder);
    if (!names.ok()) {
      if (names.status().code() != Errc::kNotFound) {
        out.damaged.push_back(damaged("", names.status()));
      }
      return;
    }
    for (const std::string& name : names.value()) {
      Digests digests;
      Result<CheckpointInfo> info = read_info(folder / name / kInfoFile, digests);
      if (info.ok()) {
        out.entries.push_back(std::move(info).value());
      } else {
        out.damaged.push_back(damaged(to_text({run_of(run), kind, name}), info.status()));
      }
    }
  }

  Result<Listing<RunInfo>> list_runs() {
    Listing<RunInfo> out;
    TIDEMILL_ASSIGN_OR_RETURN(const std::vector<std::string> runs, run_folders());
    for (const std::string& name : runs) {
      if (!is_run(name)) {
        continue;  // `list_checkpoints` reports it
      }
      for (const char* leftover : {kIncomplete, kRemoved}) {
        if (const Status cleared = clear(root_ / name, leftover); !cleared.ok()) {
          out.damaged.push_back(damaged("", cleared));
        }
      }
      Result<RunInfo> run = read_run(root_ / name / kRunFile);
      if (run.ok()) {
        out.entries.push_back(std::move(run).value());
      } else if (run.status().code() != Errc::kNotFound) {
        out.damaged.push_back(damaged(run_of(name), run.status()));
      }
    }
    return out;
  }

  Status write_run(const RunInfo& run) {
    const fs::path folder = root_ / folder_of(run.id);
    TIDEMILL_RETURN_IF_ERROR(make_directory(files_, folder));
    const Json json = Json::Object{{"id", run.id},
                                   {"base_model", run.base_model},
                                   {"lora", lora_json(run.lora)},
                                   {"last_request", run.last_request},
                                   {"user_metadata", metadata_json(run.user_metadata)}};
    return write_file(files_, folder / kRunFile, json.to_text());
  }

  Status write_expiry(const CheckpointPath& path, std::optional<std::int64_t> expires_at) {
    const fs::path file = folder(path) / kInfoFile;
    Digests digests;
    TIDEMILL_ASSIGN_OR_RETURN(CheckpointInfo info, read_info(file, digests));
    info.expires_at = expires_at;
    return write_file(files_, file, info_json(info, digests).to_text());
  }

  Result<JobState> read(const CheckpointPath& path, bool with_optimizer) {
    JobState state;
    Digests digests;
    TIDEMILL_RETURN_IF_ERROR(read_info(folder(path) / kInfoFile, digests).status());
    TIDEMILL_ASSIGN_OR_RETURN(engines::AdapterFiles adapter,
                              engines::open_adapter(folder(path), model_));
    state.weights.adapter = std::move(adapter.tensors);
    if (!digests.adapter.empty() && digest_tensors(state.weights.adapter) != digests.adapter) {
      return Status(Errc::kCorruptData,
                    folder(path).string() + ": the digest of the adapter does not match");
    }
    state.weights.base_digest = digests.base;
    state.weights.adapter_digest = digests.adapter;
    if (with_optimizer) {
      const fs::path name = folder(path) / kOptimizerFile;
      TIDEMILL_ASSIGN_OR_RETURN(TensorFile file, read_tensor_file(name, TensorPlacement::kCopied));
      TIDEMILL_RETURN_IF_ERROR(
          check_optimizer(file.tensors, digests.optimizer).with_context(name.string()));
      state.optimizer = std::move(file.tensors);
    }
    return state;
  }

  // Once its folder is moved, the checkpoint is gone. What then cannot be removed is left to the
  // next removal in this run, or to the next start.
  Status remove_files(const CheckpointPath& path) {
    const fs::path run = root_ / folder_of(path.run_id);
    TIDEMILL_RETURN_IF_ERROR(clear(run, kRemoved));
    TIDEMILL_RETURN_IF_ERROR(move(folder(path), run / kRemoved));
    (void)clear(run, kRemoved);
    return {};
  }

  [[nodiscard]] Result<std::vector<CheckpointFile>> list_files(const CheckpointPath& path) const {
    std::vector<CheckpointFile> out;
    TIDEMILL_ASSIGN_OR_RETURN(const std::vector<std::string> names, list_directory(folder(path)));
    for (const std::string& name : names) {
      if (is_adapter_file(name)) {
        TIDEMILL_ASSIGN_OR_RETURN(const ReadableFile file, ReadableFile::open(folder(path) / name));
        out.push_back({name, static_cast<std::int64_t>(file.size_bytes())});
      }
    }
    return out;
  }

  // Whether the store owns the folder `name`. It touches nothing else below its root, which may be
  // a folder that holds other data.
  [[nodiscard]] bool is_run(const std::string& name) const {
    std::error_code ignored;
    return is_name_of_run(name) && fs::is_directory(fs::symlink_status(root_ / name, ignored));
  }

  // Returns the names of what the root holds besides files, such as that of the lock.
  [[nodiscard]] Result<std::vector<std::string>> run_folders() const {
    auto listed = list_directory(root_);
    if (!listed.ok()) {
      return Status(listed.status().code(), "the directory of the checkpoints cannot be listed");
    }
    std::vector<std::string> names = std::move(listed).value();
    std::erase_if(names, [&](const std::string& name) {
      std::error_code ignored;
      return fs::is_regular_file(root_ / name, ignored);
    });
    return names;
  }

  [[nodiscard]] fs::path folder(const CheckpointPath& path) const {
    return root_ / folder_of(path.run_id) / kind_segment(path.kind) / path.name;
  }

  // Writes a checkpoint to the folder `run`.
  Result<std::int64_t> write(const fs::path& run, const CheckpointInfo& info, const JobState& state,
                             std::span<const AgeRecipient> recipients) {
    TIDEMILL_RETURN_IF_ERROR(make_directory(files_, run));
    TIDEMILL_RETURN_IF_ERROR(complete_replacement(run));
    TIDEMILL_RETURN_IF_ERROR(clear(run, kIncomplete));
    TIDEMILL_RETURN_IF_ERROR(make_directory(files_, run / kIncomplete));
    const fs::path folder = run / kIncomplete / info.path.name;
    TIDEMILL_RETURN_IF_ERROR(engines::write_adapter(files_, folder,
                                                    to_adapter_config(info.lora, info.base_model),
                                                    model_, state.weights.adapter));
    if (!recipients.empty()) {
      TIDEMILL_RETURN_IF_ERROR(encrypt_files(folder, recipients));
    }
    if (state.optimizer) {
      TIDEMILL_RETURN_IF_ERROR(
          write_tensor_file(files_, folder / kOptimizerFile, *state.optimizer));
    }
    CheckpointInfo described = info;
    TIDEMILL_ASSIGN_OR_RETURN(described.size_bytes, size_of(folder));
    const Digests digests{state.weights.base_digest, state.weights.adapter_digest,
                          state.optimizer ? digest_tensors(*state.optimizer) : ""};
    TIDEMILL_RETURN_IF_ERROR(
        write_file(files_, folder / kInfoFile, info_json(described, digests).to_text()));
    TIDEMILL_RETURN_IF_ERROR(publish(run, folder, info.path));
    return described.size_bytes;
  }

  // Gives a complete checkpoint its name. One that has the name already is first moved to
  // `kReplaced`: if the process ends before the new one has the name, the old one gets it back.
  Status publish(const fs::path& run, const fs::path& folder, const CheckpointPath& path) {
    const std::string kind(kind_segment(path.kind));
    TIDEMILL_RETURN_IF_ERROR(make_directory(files_, run / kind));
    const fs::path target = run / kind / path.name;
    std::error_code ignored;
    const bool replaces = fs::exists(target, ignored);
    if (replaces) {
      TIDEMILL_RETURN_IF_ERROR(make_directory(files_, run / kReplaced));
      TIDEMILL_RETURN_IF_ERROR(make_directory(files_, run / kReplaced / kind));
      TIDEMILL_RETURN_IF_ERROR(move(target, run / kReplaced / kind / path.name));
    }
    const Status moved = move(folder, target);
    return replaces && moved.ok() ? complete_replacement(run) : moved;
  }

  // Moves a directory, durably.
  Status move(const fs::path& from, const fs::path& to) {
    if (const int result = files_.rename(from, to); result < 0) {
      return system_error(-result, "rename", from);
    }
    const int result = files_.sync_directory(to.parent_path());
    return result < 0 ? system_error(-result, "sync", to.parent_path()) : Status();
  }

  // Gives replaced checkpoints whose replacements have no name yet their names back, and removes
  // the others.
  Status complete_replacement(const fs::path& run) {
    for (const CheckpointKind kind : kKinds) {
      const fs::path folder = run / kReplaced / kind_segment(kind);
      const Result<std::vector<std::string>> names = list_directory(folder);
      for (std::size_t i = 0; names.ok() && i < names.value().size(); ++i) {
        const fs::path target = run / kind_segment(kind) / names.value()[i];
        std::error_code ignored;
        TIDEMILL_RETURN_IF_ERROR(fs::exists(target, ignored)
                                     ? remove_tree(files_, folder, names.value()[i])
                                     : move(folder / names.value()[i], target));
      }
    }
    return {};
  }

  // Replaces the files of an adapter by encrypted ones.
  Status encrypt_files(const fs::path& folder, std::span<const AgeRecipient> recipients) {
    for (const std::string_view name : engines::exported_adapter_names()) {
      TIDEMILL_ASSIGN_OR_RETURN(const std::string plain,
                                read_text_file(folder / name, kMaxFileBytes));
      TIDEMILL_RETURN_IF_ERROR(write_file(files_, folder / std::string(name).append(kEncrypted),
                                          encrypt_age(plain, recipients)));
      TIDEMILL_RETURN_IF_ERROR(remove_file(files_, folder / name));
    }
    return {};
  }

  Status clear(const fs::path& run, const char* folder) {
    const Status removed = remove_tree(files_, run, folder);
    return removed.code() == Errc::kNotFound ? Status() : removed;
  }

  static Result<std::int64_t> size_of(const fs::path& folder) {
    std::int64_t bytes = 0;
    TIDEMILL_ASSIGN_OR_RETURN(const std::vector<std::string> names, list_directory(folder));
    for (const std::string& name : names) {
      TIDEMILL_ASSIGN_OR_RETURN(const ReadableFile file, ReadableFile::open(folder / name));
      bytes += static_cast<std::int64_t>(file.size_bytes());
    }
    return bytes;
  }

  FileSystem& files_;
  fs::path root_;
  engines::ModelConfig model_;
  storage::RunLock lock_;
};

}  // namespace

Result<std::unique_ptr<CheckpointStore>> open_disk_store(FileSystem& files, fs::path root,
                                                         engines::ModelConfig model) {
  TIDEMILL_RETURN_IF_ERROR(make_directory(files, root));
  TIDEMILL_ASSIGN_OR_RETURN(storage::RunLock lock, storage::RunLock::acquire(root));
  return std::unique_ptr<CheckpointStore>(
      std::make_unique<DiskStore>(files, std::move(root), std::move(model), std::move(lock)));
}

}  // namespace tidemill::actors::tinker
