// SPDX-License-Identifier: Apache-2.0
// The samplers of Tinker's API.
//
//   asample      responds with a future and waits for the adapter of the sampler (`use_adapter`).
//   generate     requests the samples at the device.
//   on_sample    keeps a sample; the last one ends the request (`end_sampling`), which completes
//                the future and tells those that poll the sampler.
#include <algorithm>
#include <utility>

#include "actors/gateway/tinker/results.hpp"
#include "actors/tinker/service.hpp"
#include "base/text/quote.hpp"

namespace tidemill::actors::tinker {
namespace {

// The package numbers the requests of a cloned client from a multiple of this.
constexpr std::int64_t kNumbersOfClone = 1'000'000'000;
// Ids of requests at the device that no other of its clients uses.
constexpr std::uint64_t kFirstSample = std::uint64_t{1} << 62U;
// Completions that a sampler remembers for those that poll it, for each of this many clones.
constexpr std::size_t kMaxCompletions = 4096;
constexpr std::size_t kMaxClones = 1024;

ApiError no_sampler(const std::string& id) {
  return {404, "sampling_session_id: there is no sampling session " + quote(id),
          "sampling_session_id"};
}

}  // namespace

// -- samplers and their adapters ------------------------------------------------------------------

void Service::add_sampler(const std::string& id, Sampler sampler) {
  sessions_.at(sampler.session_id).samplers.insert(id);
  if (!sampler.adapter.empty()) {
    ++adapters_.at(sampler.adapter).samplers;
  }
  samplers_.emplace(id, std::move(sampler));
}

void Service::on(ExchangeId exchange, CreateSamplingSession& call) {
  Session* session = find_session(exchange, call.session_id);
  if (session == nullptr) {
    return;
  }
  if (!call.base_model.empty() && !require_base(exchange, call.base_model)) {
    return;
  }
  const CheckpointInfo* info = nullptr;
  if (call.path) {
    info = find_checkpoint(exchange, *call.path);
    if (info == nullptr) {
      return;
    }
  }
  const std::string id = call.session_id + ":sample:" + std::to_string(call.sampling_seq_id);
  const auto same = samplers_.find(id);
  if (same != samplers_.end() && same->second.path != call.path) {
    fail(exchange, {400, "sampling_session_seq_id: another request has had this number",
                    "sampling_session_seq_id"});
    return;
  }
  if (same == samplers_.end()) {
    if (session->samplers.size() >= deps_.limits.max_samplers) {
      fail(exchange, {429, "the session has too many sampling sessions"});
      return;
    }
    Sampler sampler;
    sampler.session_id = call.session_id;
    if (info != nullptr) {
      sampler.path = call.path;
      sampler.adapter = to_text(*call.path);
      Adapter& adapter = adapters_[sampler.adapter];
      adapter.path = call.path;
      adapter.lora = info->lora;
    }
    add_sampler(id, std::move(sampler));
  }
  respond(exchange, Json::Object{{"type", "create_sampling_session"}, {"sampling_session_id", id}});
}

Result<std::string> Service::add_snapshot_sampler(const NewSnapshot& request,
                                                  engines::Snapshot snapshot) {
  std::string id = request.session_id + ":sample:" + std::to_string(request.sampling_seq_id);
  if (!sessions_.contains(request.session_id) || samplers_.contains(id)) {
    model_bytes_.give_back(request.tenant, request.bytes);
    return invalid_argument("sampling_session_seq_id: another request has had this number");
  }
  // The oldest snapshots make room: those that own no checkpoint would otherwise pile up.
  const std::vector<Removable> kept = idle_snapshots(request.session_id);
  if (kept.size() >= deps_.limits.max_idle_snapshots) {
    kept.front().end();
  }
  Adapter& adapter = adapters_[id];
  adapter.snapshot = std::move(snapshot);
  adapter.tenant = request.tenant;
  adapter.bytes = request.bytes;
  adapter.lora = request.lora;
  adapter.last_used = ++last_use_;
  Sampler sampler;
  sampler.session_id = request.session_id;
  sampler.adapter = id;
  add_sampler(id, std::move(sampler));
  return id;
}

void Service::end_sampler(const std::string& id) {
  const auto found = samplers_.find(id);
  if (found == samplers_.end()) {
    return;
  }
  std::vector<std::string> requests;
  for (const auto& [request, sampling] : sampling_) {
    if (sampling.sampler == id) {
      requests.push_back(request);
    }
  }
  for (const std::string& request : requests) {
    drop_sampling(request);
  }
  const Sampler sampler = std::move(found->second);
  samplers_.erase(found);
  if (const auto session = sessions_.find(sampler.session_id); session != sessions_.end()) {
    session->second.samplers.erase(id);
  }
  for (const Poll& poll : std::exchange(polls_, {})) {
    if (poll.sampler == id) {
      fail(poll.exchange, no_sampler(id));
    } else {
      polls_.push_back(poll);
    }
  }
  const auto adapter = adapters_.find(sampler.adapter);
  if (adapter == adapters_.end()) {
    return;
  }
  --adapter->second.samplers;
  // A snapshot has one sampler; an adapter of a checkpoint stays for others, until it is idle.
  if (adapter->second.snapshot) {
    if (adapter->second.state == Adapter::State::kPublished) {
      deps_.backend->unpublish(sampler.adapter);
    }
    model_bytes_.give_back(adapter->second.tenant, adapter->second.bytes);
    adapters_.erase(adapter);
  } else {
    drop_unused_adapter(sampler.adapter);
  }
}

// Forgets an adapter that is not loaded and that no sampler uses.
void Service::drop_unused_adapter(const std::string& name) {
  const auto found = adapters_.find(name);
  if (found != adapters_.end() && found->second.samplers == 0 &&
      found->second.state == Adapter::State::kUnloaded) {
    adapters_.erase(found);
  }
}

void Service::on(ExchangeId exchange, const JoinSampling& call) {
  const auto found = samplers_.find(call.sampling_session_id);
  if (found == samplers_.end()) {
    fail(exchange, no_sampler(call.sampling_session_id));
    return;
  }
  respond(exchange, Json::Object{{"type", "join_sampling_session"},
                                 {"client_counter", found->second.clients++}});
}

void Service::on(ExchangeId exchange, const GetSampler& call) {
  const auto found = samplers_.find(call.sampling_session_id);
  if (found == samplers_.end()) {
    fail(exchange, no_sampler(call.sampling_session_id));
    return;
  }
  Json path;
  if (found->second.path) {
    path = to_text(*found->second.path);
  }
  respond(exchange, Json::Object{{"sampler_id", call.sampling_session_id},
                                 {"base_model", deps_.base.name},
                                 {"model_path", path}});
}

// Calls `then` once the adapter is published, or with the reason why it cannot be. Each call is
// matched by one of `release_adapter`.
void Service::use_adapter(const std::string& name, std::function<void(Status)> then) {
  if (name.empty()) {
    then(Status());
    return;
  }
  Adapter& adapter = adapters_.at(name);
  ++adapter.uses;
  adapter.last_used = ++last_use_;
  if (adapter.state == Adapter::State::kPublished) {
    then(Status());
    return;
  }
  adapter.waiting.push_back(std::move(then));
  if (adapter.state == Adapter::State::kUnloaded) {
    adapter.state = Adapter::State::kPublishing;
    unload_idle(deps_.limits.max_published);
    publish(name);
  }
}

void Service::publish(const std::string& name) {
  const Adapter& adapter = adapters_.at(name);
  const auto send = [this, name](engines::Snapshot weights) {
    const auto found = adapters_.find(name);
    if (found != adapters_.end()) {
      deps_.backend->publish({name, found->second.lora, std::move(weights)},
                             [this, name](const Status& status) { on_published(name, status); });
    }
  };
  if (adapter.snapshot) {
    send(*adapter.snapshot);
    return;
  }
  read_checkpoint("", *adapter.path, false, [this, name, send](Result<JobState> state) {
    state.ok() ? send(std::move(state.value().weights)) : on_published(name, state.status());
  });
}

void Service::on_published(const std::string& name, const Status& status) {
  const auto found = adapters_.find(name);
  if (found == adapters_.end()) {
    if (status.ok()) {
      deps_.backend->unpublish(name);  // its session has ended meanwhile
    }
    return;
  }
  if (std::exchange(found->second.stale, false)) {
    if (status.ok()) {
      deps_.backend->unpublish(name);
    }
    publish(name);
    return;
  }
  if (status.code() == Errc::kResourceExhausted && unload_idle(0)) {
    publish(name);  // there is more room now
    return;
  }
  found->second.state = status.ok() ? Adapter::State::kPublished : Adapter::State::kUnloaded;
  for (const auto& then : std::exchange(found->second.waiting, {})) {
    then(status);
  }
  drop_unused_adapter(name);
}

// Unloads idle adapters until at most `kept` are loaded. Returns whether any was.
bool Service::unload_idle(std::size_t kept) {
  std::vector<std::pair<std::uint64_t, std::string>> idle;
  std::size_t loaded = 0;
  for (const auto& [name, adapter] : adapters_) {
    loaded += adapter.state == Adapter::State::kUnloaded ? 0 : 1;
    if (adapter.state == Adapter::State::kPublished && adapter.uses == 0) {
      idle.emplace_back(adapter.last_used, name);
    }
  }
  std::sort(idle.begin(), idle.end());
  std::size_t unloaded = 0;
  for (; unloaded < idle.size() && loaded > kept; ++unloaded, --loaded) {
    adapters_.at(idle[unloaded].second).state = Adapter::State::kUnloaded;
    deps_.backend->unpublish(idle[unloaded].second);
    drop_unused_adapter(idle[unloaded].second);
  }
  return unloaded > 0;
}

void Service::release_adapter(const std::string& name) {
  const auto found = adapters_.find(name);
  if (found != adapters_.end() && found->second.uses > 0) {
    --found->second.uses;
  }
}

void Service::forget_published(const CheckpointPath& path) {
  const auto found = adapters_.find(to_text(path));
  if (found == adapters_.end()) {
    return;
  }
  if (found->second.state == Adapter::State::kPublishing) {
    found->second.stale = true;  // what is being published may be older
  } else if (found->second.state == Adapter::State::kPublished) {
    found->second.state = Adapter::State::kUnloaded;  // requests that run keep the old weights
    deps_.backend->unpublish(found->first);
    drop_unused_adapter(to_text(path));
  }
}

// -- samples --------------------------------------------------------------------------------------

void Service::on(ExchangeId exchange, SampleCall& call, const Caller& caller) {
  const auto found = samplers_.find(call.sampling_session_id);
  if (found == samplers_.end()) {
    fail(exchange, no_sampler(call.sampling_session_id));
    return;
  }
  const std::string request = future_id(call.sampling_session_id, call.seq_id);
  const auto count = static_cast<std::size_t>(call.num_samples);
  Json::Array sequence_ids;
  for (std::size_t i = 0; i < count; ++i) {
    sequence_ids.emplace_back(request + ":" + std::to_string(i));
  }
  const auto respond_request = [&] {
    respond(exchange, Json::Object{{"request_id", request},
                                   {"sample_sequence_ids", std::move(sequence_ids)}});
  };
  if (!require_same_digest(exchange, "seq_id", request, call.digest)) {
    return;
  }
  if (futures_.contains(request)) {
    respond_request();  // the client has sent the request again
    return;
  }
  if (!running_samples_.fits(caller.tenant, count)) {
    fail(exchange,
         {429, "too many samples are waiting or being generated for this tenant or on the server"});
    return;
  }
  const std::int64_t clone = call.seq_id / kNumbersOfClone;
  auto& cursors = found->second.cursors;
  if (cursors.size() >= kMaxClones && !cursors.contains(clone)) {
    fail(exchange, {400, "seq_id: the sampler has too many clones", "seq_id"});
    return;
  }
  cursors.try_emplace(clone);
  running_samples_.take(caller.tenant, count);
  futures_.add(request, caller.tenant, call.digest);
  respond_request();
  Sampling sampling;
  sampling.sampler = call.sampling_session_id;
  sampling.clone = clone;
  sampling.left = count;
  sampling.arrival = deps_.now();
  sampling.results.resize(count);
  sampling.call = std::move(call);
  sampling.caller = caller;
  sampling_.emplace(request, std::move(sampling));
  use_adapter(found->second.adapter, [this, request](const Status& status) {
    if (!sampling_.contains(request)) {
      return;  // dropped
    }
    if (status.ok()) {
      generate(request);
    } else {
      end_sampling(request, failed_future(status.message(), FailureCategory::kServer));
    }
  });
}

void Service::generate(const std::string& request_id) {
  Sampling& sampling = sampling_.at(request_id);
  const std::uint64_t seed = sampling.call.seed.value_or(deps_.random());
  std::vector<engines::RolloutRequest> requests;
  for (std::size_t i = 0; i < sampling.results.size(); ++i) {
    engines::RolloutRequest request = sampling.call.settings;
    request.id = SampleId{kFirstSample + ++last_sample_};
    request.adapter = samplers_.at(sampling.sampler).adapter;
    request.seed = seed;
    request.draw_key = static_cast<std::uint64_t>(i);
    sampling.caller.sign(request);
    if (i > 0) {  // what belongs to the prompt is taken from the first sample
      request.prompt_logprobs = false;
      request.prompt_top_logprobs = 0;
    }
    sampling.ids.push_back(request.id);
    requests.push_back(std::move(request));
  }
  for (std::size_t i = 0; i < requests.size(); ++i) {
    deps_.backend->generate(std::move(requests[i]),
                            [this, request_id, i](Result<engines::RolloutResult> result) {
                              on_sample(request_id, i, std::move(result));
                            });
  }
}

void Service::on_sample(const std::string& request_id, std::size_t index,
                        Result<engines::RolloutResult> result) {
  const auto found = sampling_.find(request_id);
  if (found == sampling_.end()) {
    return;  // cancelled
  }
  Sampling& sampling = found->second;
  if (!result.ok()) {
    sampling.failure = result.status();
  } else if (result.value().finish_reason == engines::FinishReason::kFailed ||
             result.value().finish_reason == engines::FinishReason::kCancelled) {
    const std::string& reason = result.value().error;
    sampling.failure =
        Status(Errc::kInternal, reason.empty() ? "the sample was cancelled" : reason);
  } else {
    sampling.results[index] = std::move(result).value();
    if (deps_.on_sample) {
      deps_.on_sample(sampling.results[index], sampling.call.settings.prompt_ids.size(),
                      deps_.now() - sampling.arrival, sampling.caller.tenant);
    }
  }
  if (--sampling.left > 0) {
    return;
  }
  if (!sampling.failure.ok()) {
    const bool user = sampling.failure.code() == Errc::kInvalidArgument ||
                      sampling.failure.code() == Errc::kResourceExhausted;
    end_sampling(request_id,
                 failed_future(sampling.failure.message(),
                               user ? FailureCategory::kUser : FailureCategory::kServer));
    return;
  }
  end_sampling(request_id, {sample_result(sampling.call, sampling.results), true});
}

// Forgets a request, and cancels what of it the device still generates.
void Service::drop_sampling(const std::string& request_id) {
  const auto found = sampling_.find(request_id);
  if (found == sampling_.end()) {
    return;
  }
  const Sampling sampling = std::move(found->second);
  sampling_.erase(found);
  running_samples_.give_back(sampling.caller.tenant, sampling.results.size());
  for (const SampleId id : sampling.ids) {
    if (sampling.left > 0) {
      deps_.backend->cancel(id);
    }
  }
  if (const auto sampler = samplers_.find(sampling.sampler); sampler != samplers_.end()) {
    release_adapter(sampler->second.adapter);
  }
}

void Service::end_sampling(const std::string& request_id, FutureResult result) {
  const std::string id = sampling_.at(request_id).sampler;
  const std::int64_t clone = sampling_.at(request_id).clone;
  drop_sampling(request_id);
  futures_.complete(request_id, std::move(result), deps_.now());
  Sampler& sampler = samplers_.at(id);
  auto& completions = sampler.completions[clone];
  completions.emplace_back(++sampler.cursors[clone], request_id);
  if (completions.size() > kMaxCompletions) {
    completions.erase(completions.begin());
  }
  for (const Poll& poll : std::exchange(polls_, {})) {
    if (poll.sampler == id && poll.clone == clone) {
      respond(poll.exchange, completions_of(sampler, clone, poll.previous));
    } else {
      polls_.push_back(poll);
    }
  }
}

Json Service::completions_of(const Sampler& sampler, std::int64_t clone,
                             std::int64_t previous) const {
  Json::Array list;
  std::int64_t cursor = previous;
  if (const auto found = sampler.completions.find(clone); found != sampler.completions.end()) {
    for (const auto& [number, request] : found->second) {
      if (number > previous) {
        list.push_back(Json::Object{{"state", "finished"}, {"request_id", request}});
        cursor = number;
      }
    }
  }
  return Json::Object{{"completions", std::move(list)}, {"cursor", cursor}};
}

void Service::on(ExchangeId exchange, const RetrieveFutures& call) {
  const auto found = samplers_.find(call.sampling_session_id);
  if (found == samplers_.end()) {
    fail(exchange, no_sampler(call.sampling_session_id));
    return;
  }
  Sampler& sampler = found->second;
  const std::int64_t clone = call.cloned_sampler_id;
  const auto completed = sampler.completions.find(clone);
  if (completed != sampler.completions.end()) {
    // The client has seen everything up to its cursor.
    std::erase_if(completed->second,
                  [&](const auto& one) { return one.first <= call.previous_cursor; });
  }
  const bool has_some = completed != sampler.completions.end() && !completed->second.empty();
  const bool waits = !call.timeout_seconds || *call.timeout_seconds > 0.0;
  if (has_some || !waits) {
    respond(exchange, completions_of(sampler, clone, call.previous_cursor));
    return;
  }
  Duration wait = deps_.limits.futures.poll_time;
  if (call.timeout_seconds) {
    const std::chrono::duration<double> longest = wait;
    wait = std::chrono::duration_cast<Duration>(
        std::chrono::duration<double>(std::clamp(*call.timeout_seconds, 0.0, longest.count())));
  }
  polls_.push_back(
      {exchange, call.sampling_session_id, clone, call.previous_cursor, deps_.now() + wait});
}

void Service::on(ExchangeId exchange, const CancelFuture& call) {
  if (sampling_.contains(call.request_id)) {
    end_sampling(call.request_id,
                 failed_future("the request was cancelled", FailureCategory::kUser));
  } else if (futures_.is_pending(call.request_id)) {
    fail(exchange, {400, "request_id: only samples can be cancelled", "request_id"});
    return;
  }
  respond(exchange, Json::Object());
}

}  // namespace tidemill::actors::tinker
