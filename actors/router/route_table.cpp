// SPDX-License-Identifier: Apache-2.0
#include "actors/router/route_table.hpp"

#include <iterator>

namespace tidemill::actors {

Result<Route> RouteTable::begin(SampleId id) {
  if (pending_.size() >= max_pending_) {
    return Status(Errc::kUnavailable, "the router has " + std::to_string(pending_.size()) +
                                          " pending requests, the maximum");
  }
  std::optional<std::size_t> chosen = device_of(id);
  if (!chosen.has_value()) {
    chosen = least_loaded();
  }
  if (!chosen.has_value()) {
    return Status(Errc::kUnavailable, "no device serves: " + last_reason_);
  }
  const Route route{++last_ticket_, *chosen};
  pending_.emplace(route.ticket, Pending{id, *chosen});
  newest_.insert_or_assign(id, route.ticket);
  ++devices_[*chosen].num_pending;
  return route;
}

std::optional<std::size_t> RouteTable::least_loaded() const {
  std::optional<std::size_t> least;
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    if (devices_[i].state == State::kServing &&
        (!least.has_value() || devices_[i].num_pending < devices_[*least].num_pending)) {
      least = i;
    }
  }
  return least;
}

std::optional<std::size_t> RouteTable::device_of(SampleId id) const {
  const auto newest = newest_.find(id);
  return newest == newest_.end() ? std::nullopt : std::optional(pending_.at(newest->second).device);
}

std::size_t RouteTable::add() {
  devices_.emplace_back();
  return devices_.size() - 1;
}

void RouteTable::restore(std::size_t device) {
  if (devices_.at(device).state == State::kRemoved) {
    devices_[device].state = State::kServing;
  }
}

void RouteTable::begin_leave(std::size_t device, const std::string& reason) {
  if (devices_.at(device).state == State::kServing) {
    devices_[device].state = State::kLeaving;
    last_reason_ = reason;
  }
}

bool RouteTable::ready_to_leave(std::size_t device) const {
  const Device& of = devices_.at(device);
  return of.state == State::kLeaving && of.num_pending == 0;
}

void RouteTable::drop(std::map<std::uint64_t, Pending>::iterator request) {
  const auto newest = newest_.find(request->second.id);
  if (newest != newest_.end() && newest->second == request->first) {
    newest_.erase(newest);
  }
  --devices_[request->second.device].num_pending;
  pending_.erase(request);
}

std::optional<std::size_t> RouteTable::end(std::uint64_t ticket) {
  const auto request = pending_.find(ticket);
  if (request == pending_.end()) {
    return std::nullopt;
  }
  const std::size_t device = request->second.device;
  drop(request);
  return device;
}

std::vector<std::pair<std::uint64_t, SampleId>> RouteTable::remove(std::size_t device,
                                                                   const std::string& reason) {
  std::vector<std::pair<std::uint64_t, SampleId>> lost;
  if (devices_.at(device).state == State::kRemoved) {
    return lost;
  }
  devices_[device].state = State::kRemoved;
  last_reason_ = reason;
  for (auto it = pending_.begin(); it != pending_.end();) {
    const auto request = it++;
    if (request->second.device == device) {
      lost.emplace_back(request->first, request->second.id);
      drop(request);
    }
  }
  return lost;
}

}  // namespace tidemill::actors
