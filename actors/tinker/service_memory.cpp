// SPDX-License-Identifier: Apache-2.0
// The memory of models and snapshots: what makes room for new ones, and what clients are told if
// nothing does.
//
// A session whose client has ended without finishing it keeps its memory until its heartbeats have
// been missing for `heartbeat_timeout`. If its tenant needs the memory, it ends earlier: once it
// has sent nothing for `silence_timeout`. Sessions of other tenants are never ended for that.
#include <algorithm>
#include <utility>

#include "actors/tinker/service.hpp"
#include "base/text/mebibytes.hpp"

namespace tidemill::actors::tinker {
namespace {

// How much later than expected a heartbeat may arrive before it counts as missed.
constexpr auto kHeartbeatDelay = std::chrono::seconds(1);
// The package asks again 10 times. With this time between, it still asks once the heartbeat of a
// client that has just ended is missed.
constexpr std::int64_t kRetrySeconds = 2;

std::string text_of(std::size_t bytes) {
  return mebibytes_text(static_cast<std::int64_t>(bytes));
}

std::int64_t seconds_of(Duration duration) {
  return std::chrono::ceil<std::chrono::seconds>(duration).count();
}

}  // namespace

std::size_t Service::snapshot_bytes_of(const Model& model, const SaveWeights* save) const {
  return save != nullptr && !save->name && deps_.snapshot_bytes
             ? deps_.snapshot_bytes(model.run.lora)
             : 0;
}

std::vector<Service::Removable> Service::silent_sessions(const std::string& tenant) {
  std::vector<std::pair<TimePoint, std::string>> silent;
  const TimePoint now = deps_.now();
  for (const auto& [id, session] : sessions_) {
    if (session.tenant == tenant && now - session.last_request >= deps_.limits.silence_timeout) {
      silent.emplace_back(session.last_request, id);
    }
  }
  std::sort(silent.begin(), silent.end());
  std::vector<Removable> out;
  for (const auto& [last_request, id] : silent) {
    Removable one;
    for (const std::string& name : sessions_.at(id).models) {
      const Model& model = models_.at(name);
      if (!model.opening) {  // otherwise, the memory is given back later
        one.models += 1;
        one.bytes += model.bytes;
      }
    }
    for (const std::string& name : sessions_.at(id).samplers) {
      const auto adapter = adapters_.find(name);  // a snapshot has the name of its sampler
      one.bytes += adapter == adapters_.end() ? 0 : adapter->second.bytes;
    }
    if (one.models > 0 || one.bytes > 0) {
      one.end = [this, session = id] { end_session(session); };
      out.push_back(std::move(one));
    }
  }
  return out;
}

// The least recently used one is the first.
std::vector<Service::Removable> Service::idle_snapshots(const std::string& session_id) {
  std::vector<std::pair<std::uint64_t, std::string>> idle;
  for (const std::string& sampler : sessions_.at(session_id).samplers) {
    const auto adapter = adapters_.find(sampler);
    if (adapter != adapters_.end() && adapter->second.snapshot && adapter->second.uses == 0) {
      idle.emplace_back(adapter->second.last_used, sampler);
    }
  }
  std::sort(idle.begin(), idle.end());
  std::vector<Removable> out;
  out.reserve(idle.size());
  for (const auto& [last_used, id] : idle) {
    out.push_back({0, adapters_.at(id).bytes, [this, sampler = id] { end_sampler(sampler); }});
  }
  return out;
}

bool Service::make_room(const std::string& tenant, std::size_t models, std::size_t bytes,
                        const std::vector<Removable>& removable) {
  FairLimit models_then = open_models_;
  FairLimit bytes_then = model_bytes_;
  const auto fits = [&] {
    return models_then.fits(tenant, models) && bytes_then.fits(tenant, bytes);
  };
  std::size_t ended = 0;
  for (; ended < removable.size() && !fits(); ++ended) {
    models_then.give_back(tenant, removable[ended].models);
    bytes_then.give_back(tenant, removable[ended].bytes);
  }
  if (!fits()) {
    return false;
  }
  for (std::size_t i = 0; i < ended; ++i) {
    removable[i].end();
  }
  return true;
}

std::string Service::memory_text(const std::string& tenant) const {
  std::size_t models = 0;
  for (const auto& [id, model] : models_) {
    models += model.tenant == tenant ? model.bytes : 0;
  }
  const std::size_t held = model_bytes_.held_by(tenant);
  return text_of(model_bytes_.left(tenant)) + " are left for this tenant: its models take " +
         text_of(models) + " and its snapshots " + text_of(held - std::min(held, models));
}

void Service::fail_without_room(ExchangeId exchange, const std::string& tenant,
                                const std::string& fact, const std::string& param) {
  // The package asks again after the time of the header, so it gets the time until a session whose
  // client has probably ended makes room.
  const TimePoint now = deps_.now();
  Duration wait = deps_.limits.silence_timeout;
  bool waits = false;
  for (const auto& [id, session] : sessions_) {
    const Duration silence = now - session.last_request;
    if (session.tenant == tenant && silence < deps_.limits.silence_timeout &&
        silence > deps_.limits.heartbeat_time + kHeartbeatDelay) {
      wait = std::min(wait, deps_.limits.silence_timeout - silence);
      waits = true;
    }
  }
  HttpResponse response = openai::to_response(
      {429,
       fact + "; end other sessions; a session without heartbeats makes room after " +
           std::to_string(seconds_of(deps_.limits.silence_timeout)) + " seconds",
       param});
  response.headers.push_back(
      {"retry-after", std::to_string(waits ? seconds_of(wait) : kRetrySeconds)});
  deps_.respond(exchange, std::move(response));
}

}  // namespace tidemill::actors::tinker
