// SPDX-License-Identifier: Apache-2.0
// The checkpoints and runs of Tinker's API. They are listed from memory, and read and written at a
// port.
#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <utility>

#include "actors/tinker/service.hpp"
#include "base/text/quote.hpp"

namespace tidemill::actors::tinker {
namespace {

constexpr std::int64_t kTokenSeconds = 3600;
constexpr auto kRemovalPause =
    std::chrono::minutes(1);  // after an expired one could not be removed

// Returns a Unix time as "2026-01-02T03:04:05Z".
std::string time_text(std::int64_t seconds) {
  const auto time = static_cast<std::time_t>(seconds);
  std::tm parts{};
  gmtime_r(&time, &parts);
  std::array<char, 32> text{};
  const std::size_t size = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return {text.data(), size};
}

Json to_json(const Metadata& metadata) {
  Json::Object object;
  for (const auto& [name, value] : metadata) {
    object.push_back({name, value});
  }
  return metadata.empty() ? Json() : Json(std::move(object));
}

// Returns the part of `all` that a page has, newest first.
template <class T>
std::vector<T> page_of(std::vector<std::pair<std::int64_t, T>> all, const Page& page) {
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<T> out;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    if (index >= page.offset && index - page.offset < page.limit) {
      out.push_back(std::move(all[i].second));
    }
  }
  return out;
}

Json cursor_json(const Page& page, std::size_t total) {
  return Json::Object{{"offset", page.offset},
                      {"limit", page.limit},
                      {"total_count", static_cast<std::int64_t>(total)}};
}

}  // namespace

void Service::start() {
  struct Listed {
    Result<Listing<CheckpointInfo>> checkpoints = Listing<CheckpointInfo>();
    Result<Listing<RunInfo>> runs = Listing<RunInfo>();
  };
  const auto listed = std::make_shared<Listed>();
  deps_.run_work(
      "",
      [store = deps_.store, listed] {
        listed->checkpoints = store->checkpoints();
        listed->runs = store->runs();
      },
      [this, listed] {
        if (!listed->checkpoints.ok() || !listed->runs.ok()) {
          const Status& status =
              listed->checkpoints.ok() ? listed->runs.status() : listed->checkpoints.status();
          list_failure_ = ApiError{500, status.message()};
          warn(status.message());
          return;
        }
        for (CheckpointInfo& info : listed->checkpoints.value().entries) {
          const CheckpointPath path = info.path;
          checkpoints_.emplace(path, std::move(info));
        }
        for (RunInfo& run : listed->runs.value().entries) {
          const std::string id = run.id;
          runs_.emplace(id, std::move(run));
        }
        add_damaged(listed->checkpoints.value().damaged);
        add_damaged(listed->runs.value().damaged);
        listed_ = true;
      });
}

void Service::warn(const std::string& message) const {
  if (deps_.warn) {
    deps_.warn("serve.checkpoints_path: " + message);
  }
}

void Service::add_damaged(const std::vector<DamagedEntry>& entries) {
  for (const DamagedEntry& entry : entries) {
    if (!entry.id.empty()) {
      damaged_.emplace(entry.id, entry.reason);
    }
    warn(entry.reason + "; the entry is left out");
  }
}

bool Service::refuse_if_damaged(ExchangeId exchange, const std::string& id) {
  const auto found = damaged_.find(id);
  if (found == damaged_.end()) {
    return false;
  }
  HttpResponse response = openai::to_response({500, quote(id) + " is damaged: " + found->second});
  response.headers.push_back({"x-should-retry", "false"});  // the package then does not ask again
  deps_.respond(exchange, std::move(response));
  return true;
}

const CheckpointInfo* Service::find_checkpoint(const CheckpointPath& path) const {
  const auto found = checkpoints_.find(path);
  if (found == checkpoints_.end() ||
      (found->second.expires_at && *found->second.expires_at <= deps_.unix_time())) {
    return nullptr;
  }
  return &found->second;
}

const CheckpointInfo* Service::find_checkpoint(ExchangeId exchange, const CheckpointPath& path) {
  if (!require_listing(exchange)) {
    return nullptr;
  }
  const CheckpointInfo* info = find_checkpoint(path);
  if (info == nullptr && !refuse_if_damaged(exchange, to_text(path))) {
    fail(exchange, {404, "path: there is no checkpoint " + quote(to_text(path)), "path"});
  }
  return info;
}

bool Service::require_listing(ExchangeId exchange) {
  if (!listed_) {
    fail(exchange, list_failure_.value_or(ApiError{503, "the checkpoints are still being listed"}));
  }
  return listed_;
}

// -- reading and writing --------------------------------------------------------------------------

void Service::store_checkpoint(const std::string& tenant, CheckpointInfo info, JobState state,
                               std::vector<AgeRecipient> recipients,
                               std::function<void(Status)> done) {
  struct Work {
    CheckpointInfo info;
    JobState state;
    Status status;
  };
  const auto work = std::make_shared<Work>(Work{std::move(info), std::move(state), {}});
  ++writing_[work->info.path];
  deps_.run_work(
      tenant,
      [store = deps_.store, work, recipients = std::move(recipients)] {
        const Result<std::int64_t> size = store->put(work->info, work->state, recipients);
        work->state = JobState();  // freed here, because it may be large
        size.ok() ? void(work->info.size_bytes = size.value()) : void(work->status = size.status());
      },
      [this, work, done = std::move(done)] {
        if (const auto writing = writing_.find(work->info.path); --writing->second == 0) {
          writing_.erase(writing);
        }
        if (work->status.ok()) {
          checkpoints_[work->info.path] = work->info;
          damaged_.erase(to_text(work->info.path));
          forget_published(work->info.path);
        }
        done(work->status);
      });
}

void Service::read_checkpoint(const std::string& tenant, const CheckpointPath& path,
                              bool with_optimizer, std::function<void(Result<JobState>)> done) {
  const auto state = std::make_shared<Result<JobState>>(Status(Errc::kInternal, "not read"));
  const auto found = checkpoints_.find(path);
  const std::string base = found == checkpoints_.end() ? "" : found->second.base_model;
  deps_.run_work(
      tenant,
      [store = deps_.store, path, with_optimizer, state] {
        *state = store->get(path, with_optimizer);
      },
      [this, state, base, done = std::move(done)] {
        const bool misfits = state->status().code() == Errc::kInvalidArgument;
        if (misfits && !base.empty() && base != deps_.base.name) {
          *state = invalid_argument("the checkpoint is of the base model " + quote(base) +
                                    ", and the server serves " + quote(deps_.base.name) + ": " +
                                    state->status().message());
        }
        done(std::move(*state));
      });
}

void Service::remove_checkpoint(const std::string& tenant, const CheckpointPath& path,
                                std::function<void(Status)> done) {
  // Hidden while it is removed. If that fails, it can be removed again.
  std::optional<CheckpointInfo> hidden;
  if (const auto found = checkpoints_.find(path); found != checkpoints_.end()) {
    hidden = std::move(found->second);
    checkpoints_.erase(found);
  }
  forget_published(path);
  const auto status = std::make_shared<Status>();
  deps_.run_work(
      tenant, [store = deps_.store, path, status] { *status = store->remove(path); },
      [this, path, status, hidden = std::move(hidden), done = std::move(done)] {
        if (hidden && status->code() == Errc::kNotFound) {
          *status = Status();  // its files were gone already
        }
        if (status->ok()) {
          // A save that was queued before has listed it again.
          checkpoints_.erase(path);
          forget_published(path);
          damaged_.erase(to_text(path));
        } else if (hidden) {
          checkpoints_.try_emplace(path, *hidden);
        }
        done(*status);
      });
}

void Service::drop_expired() {
  std::vector<CheckpointPath> expired;
  const std::int64_t now = deps_.unix_time();
  for (const auto& [path, info] : checkpoints_) {
    // One that is being written has a new expiry soon.
    if (info.expires_at && *info.expires_at <= now && !writing_.contains(path)) {
      expired.push_back(path);
    }
  }
  for (const CheckpointPath& path : expired) {
    if (deps_.now() < next_removal_) {
      break;
    }
    remove_checkpoint("", path, [this, path](const Status& status) {
      if (!status.ok() && deps_.now() >= next_removal_) {
        warn(quote(to_text(path)) + " has expired and cannot be removed: " + status.message());
        next_removal_ = deps_.now() + kRemovalPause;
      }
    });
  }
  for (auto it = url_grants_.begin(); it != url_grants_.end();) {
    if (it->second.ends_at > now) {
      ++it;
      continue;
    }
    open_url_grants_.give_back(it->second.tenant, 1);
    it = url_grants_.erase(it);
  }
}

void Service::touch_run(Model& model) {
  const bool is_new = !runs_.contains(model.run.id) || unstored_runs_.erase(model.run.id) > 0;
  model.run.last_request = deps_.unix_time();
  runs_[model.run.id] = model.run;
  if (is_new) {  // later requests only change the time, which is not worth a write
    const auto stored = std::make_shared<Status>();
    deps_.run_work(
        model.tenant,
        [store = deps_.store, run = model.run, stored] { *stored = store->put_run(run); },
        [this, id = model.run.id, stored] {
          if (!stored->ok()) {
            unstored_runs_.insert(id);  // the next request tries again
          }
        });
    forget_old_runs();
  }
}

void Service::forget_old_runs() {
  if (!listed_ || runs_.size() <= deps_.limits.max_unused_runs) {
    return;
  }
  std::vector<std::pair<std::int64_t, std::string>> unused;
  for (const auto& [id, run] : runs_) {
    const auto checkpoint = checkpoints_.lower_bound({id, CheckpointKind{}, ""});
    const bool has_checkpoint = checkpoint != checkpoints_.end() && checkpoint->first.run_id == id;
    if (!has_checkpoint && !models_.contains(id)) {
      unused.emplace_back(run.last_request, id);
    }
  }
  if (unused.size() <= deps_.limits.max_unused_runs) {
    return;
  }
  std::sort(unused.begin(), unused.end());
  unused.resize(unused.size() - deps_.limits.max_unused_runs);
  for (const auto& [time, id] : unused) {
    runs_.erase(id);
    unstored_runs_.erase(id);
    deps_.run_work(
        "", [store = deps_.store, run_id = id] { (void)store->remove_run(run_id); }, [] {});
  }
}

// -- lists ----------------------------------------------------------------------------------------

Json Service::to_json(const CheckpointInfo& info) const {
  return Json::Object{
      {"checkpoint_id", std::string(kind_segment(info.path.kind)) + "/" + info.path.name},
      {"checkpoint_type", std::string(kind_name(info.path.kind))},
      {"time", time_text(info.created)},
      {"tinker_path", to_text(info.path)},
      {"size_bytes", info.size_bytes},
      {"public", false},
      {"user_metadata", tinker::to_json(info.user_metadata)},
      {"expires_at", info.expires_at ? Json(time_text(*info.expires_at)) : Json()}};
}

Json Service::to_json(const RunInfo& run) const {
  const CheckpointInfo* training = nullptr;
  const CheckpointInfo* sampler = nullptr;
  for (auto it = checkpoints_.lower_bound({run.id, CheckpointKind{}, ""});
       it != checkpoints_.end() && it->first.run_id == run.id; ++it) {
    const auto& [path, info] = *it;
    const bool is_training = path.kind == CheckpointKind::kTraining;
    const CheckpointInfo*& newest = is_training ? training : sampler;
    if (path.kind != CheckpointKind::kExternal &&
        (newest == nullptr || newest->created <= info.created)) {
      newest = &info;
    }
  }
  return Json::Object{{"training_run_id", run.id},
                      {"base_model", run.base_model},
                      {"model_owner", "tidemill"},
                      {"is_lora", true},
                      {"lora_rank", static_cast<std::int64_t>(run.lora.rank)},
                      {"last_request_time", time_text(run.last_request)},
                      {"last_checkpoint", training == nullptr ? Json() : to_json(*training)},
                      {"last_sampler_checkpoint", sampler == nullptr ? Json() : to_json(*sampler)},
                      {"user_metadata", tinker::to_json(run.user_metadata)}};
}

void Service::on(ExchangeId exchange, const ListRuns& call) {
  if (!require_listing(exchange)) {
    return;
  }
  std::vector<std::pair<std::int64_t, const RunInfo*>> all;
  for (const auto& [id, run] : runs_) {
    all.emplace_back(run.last_request, &run);
  }
  const std::size_t total = all.size();
  Json::Array page;
  for (const RunInfo* run : page_of(std::move(all), call.page)) {
    page.push_back(to_json(*run));
  }
  respond(exchange, Json::Object{{"training_runs", std::move(page)},
                                 {"cursor", cursor_json(call.page, total)}});
}

void Service::on(ExchangeId exchange, const GetRun& call) {
  if (!require_listing(exchange)) {
    return;
  }
  const auto found = runs_.find(call.run_id);
  if (found == runs_.end() && refuse_if_damaged(exchange, call.run_id)) {
    return;
  }
  if (found == runs_.end()) {
    fail(exchange, {404, "there is no training run " + quote(call.run_id)});
    return;
  }
  respond(exchange, to_json(found->second));
}

void Service::on(ExchangeId exchange, const ListCheckpoints& call) {
  if (!require_listing(exchange)) {
    return;
  }
  std::vector<std::pair<std::int64_t, const CheckpointInfo*>> all;
  for (const auto& [path, info] : checkpoints_) {
    if ((!call.run_id || path.run_id == *call.run_id) && find_checkpoint(path) != nullptr) {
      all.emplace_back(info.created, &info);
    }
  }
  const std::size_t total = all.size();
  Json::Array page;
  for (const CheckpointInfo* info : page_of(std::move(all), call.page)) {
    page.push_back(to_json(*info));
  }
  respond(exchange, Json::Object{{"checkpoints", std::move(page)},
                                 {"cursor", call.run_id ? Json() : cursor_json(call.page, total)}});
}

void Service::on(ExchangeId exchange, const DeleteCheckpoint& call, const Caller& caller) {
  // A damaged checkpoint can be deleted, too.
  if (damaged_.contains(to_text(call.path)) || find_checkpoint(exchange, call.path) != nullptr) {
    remove_checkpoint(caller.tenant, call.path, [this, exchange](const Status& status) {
      status.ok() ? respond(exchange, Json::Object()) : fail_storage(exchange, status);
    });
  }
}

void Service::on(ExchangeId exchange, const SetTtl& call, const Caller& caller) {
  if (find_checkpoint(exchange, call.path) == nullptr) {
    return;
  }
  std::optional<std::int64_t> expires_at;
  if (call.ttl_seconds) {
    expires_at = deps_.unix_time() + *call.ttl_seconds;
  }
  const auto status = std::make_shared<Status>();
  deps_.run_work(
      caller.tenant,
      [store = deps_.store, path = call.path, expires_at, status] {
        *status = store->set_expiry(path, expires_at);
      },
      [this, exchange, path = call.path, expires_at, status] {
        if (!status->ok()) {
          fail_storage(exchange, *status);
          return;
        }
        if (const auto kept = checkpoints_.find(path); kept != checkpoints_.end()) {
          kept->second.expires_at = expires_at;
        }
        respond(exchange, Json::Object());
      });
}

void Service::on(ExchangeId exchange, const GetWeightsInfo& call) {
  if (const CheckpointInfo* info = find_checkpoint(exchange, call.path)) {
    respond(exchange, Json::Object{{"base_model", info->base_model},
                                   {"is_lora", true},
                                   {"lora_rank", static_cast<std::int64_t>(info->lora.rank)},
                                   {"train_unembed", info->lora.train_unembed},
                                   {"train_mlp", info->lora.train_mlp},
                                   {"train_attn", info->lora.train_attn}});
  }
}

// -- downloads ------------------------------------------------------------------------------------

// A token is used for all requests of a tenant for the same files.
std::optional<std::string> Service::take_token(const CheckpointPath& path,
                                               const std::string& tenant) {
  const std::int64_t ends_at = deps_.unix_time() + kTokenSeconds;
  for (auto& [token, files] : url_grants_) {
    if (files.path == path && files.tenant == tenant) {
      files.ends_at = ends_at;
      return token;
    }
  }
  if (!open_url_grants_.fits(tenant, 1)) {
    return std::nullopt;
  }
  open_url_grants_.take(tenant, 1);
  std::string token = new_id();
  url_grants_[token] = {path, tenant, ends_at};
  return token;
}

void Service::on(ExchangeId exchange, const GetFileUrls& call, const Caller& caller) {
  if (find_checkpoint(exchange, call.path) == nullptr) {
    return;
  }
  const auto files =
      std::make_shared<Result<std::vector<CheckpointFile>>>(Status(Errc::kInternal, "not listed"));
  deps_.run_work(
      caller.tenant,
      [store = deps_.store, path = call.path, files] { *files = store->files(path); },
      [this, exchange, call, tenant = caller.tenant, files] {
        if (!files->ok()) {
          fail_storage(exchange, files->status());
          return;
        }
        const std::optional<std::string> token = take_token(call.path, tenant);
        if (!token) {
          fail(exchange, {429,
                          "too many checkpoints have valid URLs for this tenant or on the server; "
                          "wait until some expire"});
          return;
        }
        Json::Object urls;
        for (const CheckpointFile& file : files->value()) {
          urls.push_back(
              {file.name, call.origin + "/api/v1/training_runs/" + call.path.run_id +
                              "/checkpoints/" + std::string(kind_segment(call.path.kind)) + "/" +
                              call.path.name + "/files/" + file.name + "?token=" + *token});
        }
        respond(exchange, Json::Object{{"urls", std::move(urls)},
                                       {"expires", time_text(url_grants_.at(*token).ends_at)}});
      });
}

void Service::on(ExchangeId exchange, const GetFile& call) {
  const auto found = url_grants_.find(call.token);
  if (found == url_grants_.end() || found->second.ends_at <= deps_.unix_time() ||
      found->second.path != call.path) {
    fail(exchange, {403, "the URL is not valid, or has expired"});
    return;
  }
  const bool started = deps_.send_file(
      exchange, found->second.tenant,
      [store = deps_.store, path = call.path, name = call.name] {
        return store->open_file(path, name);
      },
      [this, exchange](const Status& status) { fail_storage(exchange, status); });
  if (!started) {
    fail(exchange, {429, "too many files are being downloaded for this tenant or on the server"});
  }
}

}  // namespace tidemill::actors::tinker
