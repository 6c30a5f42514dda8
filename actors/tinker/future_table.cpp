// SPDX-License-Identifier: Apache-2.0
#include "actors/tinker/future_table.hpp"

#include <algorithm>
#include <utility>

#include "actors/gateway/openai/api_error.hpp"
#include "base/json/json.hpp"

namespace tidemill::actors::tinker {
namespace {

HttpResponse gone(const std::string& id) {
  return openai::to_response(
      {410, "request_id: the result of " + id + " is no longer kept", "request_id"});
}

}  // namespace

FutureResult failed_future(const std::string& message, FailureCategory category) {
  const char* name = category == FailureCategory::kUser ? "user" : "server";
  return {Json(Json::Object{{"error", message}, {"category", name}}).to_line(), false, true};
}

void FutureTable::add(const std::string& id, const std::string& tenant, const std::string& digest) {
  Future& future = futures_[id];
  future.tenant = tenant;
  future.digest = digest;
}

bool FutureTable::has_other_digest(const std::string& id, const std::string& digest) const {
  const auto found = futures_.find(id);
  return found != futures_.end() && found->second.digest != digest;
}

bool FutureTable::is_pending(const std::string& id) const {
  const auto found = futures_.find(id);
  return found != futures_.end() && !found->second.ready;
}

void FutureTable::set_drop_time(const std::string& id, Future& future, TimePoint drop_at) {
  by_drop_time_.erase({future.drop_at, id});
  future.drop_at = drop_at;
  by_drop_time_.emplace(drop_at, id);
}

void FutureTable::respond_ready(const std::string& id, Future& future, ExchangeId exchange,
                                TimePoint now) {
  set_drop_time(id, future, std::min(future.drop_at, now + limits_.read_lifetime));
  const char* type = future.result.is_protobuf ? "application/x-protobuf" : "application/json";
  respond_(exchange, {200, {{"content-type", type}}, future.result.body});
}

void FutureTable::complete(const std::string& id, FutureResult result, TimePoint now) {
  const auto found = futures_.find(id);
  if (found == futures_.end() || found->second.ready) {
    return;
  }
  Future& future = found->second;
  future.ready = true;
  future.result = std::move(result);
  Results& results = ready_[future.tenant];
  future.position = results.ids.insert(results.ids.end(), id);
  const std::size_t bytes = future.result.body.size() + kResultOverheadBytes;
  results.bytes += bytes;
  bytes_ += bytes;
  set_drop_time(id, future, now + limits_.unread_lifetime);
  for (const ExchangeId exchange : std::exchange(future.waiting, {})) {
    exchanges_.erase(exchange);
    respond_ready(id, future, exchange, now);
  }
  make_room(id);
}

void FutureTable::drop_oldest(const Results& results) {
  drop(futures_.find(results.ids.front()));
}

void FutureTable::make_room(const std::string& newest) {
  const Results& own = ready_.at(futures_.at(newest).tenant);
  while (own.ids.size() > std::max<std::size_t>(limits_.max_results, 1)) {
    drop_oldest(own);
  }
  while (bytes_ > limits_.max_bytes) {
    const Results* largest = nullptr;
    for (const auto& [tenant, results] : ready_) {
      if (results.ids.front() != newest && (largest == nullptr || results.bytes > largest->bytes)) {
        largest = &results;
      }
    }
    if (largest == nullptr) {
      return;  // the newest result is all that is left
    }
    drop_oldest(*largest);
  }
}

FutureTable::Futures::iterator FutureTable::drop(Futures::iterator found) {
  const auto& [id, future] = *found;
  for (const ExchangeId exchange : future.waiting) {
    exchanges_.erase(exchange);
    respond_(exchange, gone(id));
  }
  if (future.ready) {
    const std::size_t bytes = future.result.body.size() + kResultOverheadBytes;
    const auto results = ready_.find(future.tenant);
    results->second.bytes -= bytes;
    bytes_ -= bytes;
    results->second.ids.erase(future.position);
    if (results->second.ids.empty()) {
      ready_.erase(results);
    }
    by_drop_time_.erase({future.drop_at, id});
  }
  return futures_.erase(found);
}

void FutureTable::poll(const std::string& id, ExchangeId exchange, TimePoint now) {
  const auto found = futures_.find(id);
  if (found == futures_.end()) {
    respond_(exchange, gone(id));
  } else if (found->second.ready) {
    respond_ready(id, found->second, exchange, now);
  } else {
    found->second.waiting.insert(exchange);
    exchanges_[exchange] = {id, now + limits_.poll_time};
  }
}

void FutureTable::forget(ExchangeId exchange) {
  const auto found = exchanges_.find(exchange);
  if (found != exchanges_.end()) {
    futures_.at(found->second.id).waiting.erase(exchange);
    exchanges_.erase(found);
  }
}

void FutureTable::drop_session(const std::string& session) {
  const std::string prefix = session + ":";
  for (auto it = futures_.lower_bound(prefix);
       it != futures_.end() && it->first.starts_with(prefix);) {
    it = drop(it);
  }
}

void FutureTable::end_waits(TimePoint time) {
  for (auto it = exchanges_.begin(); it != exchanges_.end();) {
    const auto& [exchange, wait] = *it;
    if (wait.until > time) {
      ++it;
      continue;
    }
    futures_.at(wait.id).waiting.erase(exchange);
    // The package polls again at once after 408, and logs nothing.
    HttpResponse again = openai::json_response(
        Json::Object{{"type", "try_again"}, {"request_id", wait.id}, {"queue_state", "active"}});
    again.status = 408;
    respond_(exchange, std::move(again));
    it = exchanges_.erase(it);
  }
}

void FutureTable::drop_expired(TimePoint now) {
  while (!by_drop_time_.empty() && by_drop_time_.begin()->first <= now) {
    drop(futures_.find(by_drop_time_.begin()->second));
  }
}

}  // namespace tidemill::actors::tinker
