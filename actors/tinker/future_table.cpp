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
      {410, "request_id: the result of " + id + " is kept no longer", "request_id"});
}

}  // namespace

FutureResult failed_future(const std::string& message, FailureCategory category) {
  const char* name = category == FailureCategory::kUser ? "user" : "server";
  return {Json(Json::Object{{"error", message}, {"category", name}}).to_line(), false, true};
}

void FutureTable::add(const std::string& id, const std::string& owner, const std::string& digest) {
  Future& future = futures_[id];
  future.owner = owner;
  future.digest = digest;
}

bool FutureTable::is_of_other(const std::string& id, const std::string& digest) const {
  const auto found = futures_.find(id);
  return found != futures_.end() && found->second.digest != digest;
}

bool FutureTable::is_pending(const std::string& id) const {
  const auto found = futures_.find(id);
  return found != futures_.end() && !found->second.ready;
}

void FutureTable::respond_ready(Future& future, ExchangeId exchange, TimePoint now) {
  future.drop_at = std::min(future.drop_at, now + limits_.read_lifetime);
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
  future.drop_at = now + limits_.unread_lifetime;
  bytes_ += future.result.body.size();
  ready_.push_back(id);
  const std::map<ExchangeId, TimePoint> waiting = std::exchange(future.waiting, {});
  for (const auto& [exchange, until] : waiting) {
    exchanges_.erase(exchange);
    respond_ready(future, exchange, now);
  }
  make_room();
}

void FutureTable::make_room() {
  while (bytes_ > limits_.max_bytes && ready_.size() > 1) {  // the newest result is always kept
    drop(ready_.front());
  }
}

void FutureTable::drop(const std::string& id) {
  const auto found = futures_.find(id);
  if (found == futures_.end()) {
    return;
  }
  for (const auto& [exchange, until] : found->second.waiting) {
    exchanges_.erase(exchange);
    respond_(exchange, gone(id));
  }
  if (found->second.ready) {
    bytes_ -= found->second.result.body.size();
    ready_.remove(id);
  }
  futures_.erase(found);
}

void FutureTable::poll(const std::string& id, ExchangeId exchange, TimePoint now) {
  const auto found = futures_.find(id);
  if (found == futures_.end()) {
    respond_(exchange, gone(id));
  } else if (found->second.ready) {
    respond_ready(found->second, exchange, now);
  } else {
    found->second.waiting[exchange] = now + limits_.poll_time;
    exchanges_[exchange] = id;
  }
}

void FutureTable::forget(ExchangeId exchange) {
  const auto found = exchanges_.find(exchange);
  if (found != exchanges_.end()) {
    futures_.at(found->second).waiting.erase(exchange);
    exchanges_.erase(found);
  }
}

void FutureTable::drop_owner(const std::string& owner) {
  std::vector<std::string> ids;
  for (const auto& [id, future] : futures_) {
    if (future.owner == owner) {
      ids.push_back(id);
    }
  }
  for (const std::string& id : ids) {
    drop(id);
  }
}

void FutureTable::end_waits(TimePoint time) {
  for (auto& [id, future] : futures_) {
    for (auto it = future.waiting.begin(); it != future.waiting.end();) {
      if (it->second > time) {
        ++it;
        continue;
      }
      const ExchangeId exchange = it->first;
      it = future.waiting.erase(it);
      exchanges_.erase(exchange);
      // The package polls again at once after 408, and logs nothing.
      HttpResponse again = openai::json_response(
          Json::Object{{"type", "try_again"}, {"request_id", id}, {"queue_state", "active"}});
      again.status = 408;
      respond_(exchange, std::move(again));
    }
  }
}

void FutureTable::drop_old(TimePoint now) {
  std::vector<std::string> over;
  for (const auto& [id, future] : futures_) {
    if (future.ready && future.drop_at <= now) {
      over.push_back(id);
    }
  }
  for (const std::string& id : over) {
    drop(id);
  }
}

}  // namespace tidemill::actors::tinker
