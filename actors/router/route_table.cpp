// SPDX-License-Identifier: Apache-2.0
#include "actors/router/route_table.hpp"

#include <iterator>

namespace tidemill::actors {

Result<Route> RouteTable::begin(SampleId id) {
  if (held_.size() >= max_held_) {
    return Status(Errc::kUnavailable,
                  "the router holds " + std::to_string(held_.size()) + " requests, the maximum");
  }
  std::optional<std::size_t> chosen = device_of(id);
  if (!chosen.has_value()) {
    chosen = least_loaded();
  }
  if (!chosen.has_value()) {
    return Status(Errc::kUnavailable, "no device serves: " + last_reason_);
  }
  const Route route{++last_ticket_, *chosen};
  held_.emplace(route.ticket, Held{id, *chosen});
  newest_.insert_or_assign(id, route.ticket);
  ++devices_[*chosen].num_held;
  return route;
}

std::optional<std::size_t> RouteTable::least_loaded() const {
  std::optional<std::size_t> least;
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    if (devices_[i].serves &&
        (!least.has_value() || devices_[i].num_held < devices_[*least].num_held)) {
      least = i;
    }
  }
  return least;
}

std::optional<std::size_t> RouteTable::device_of(SampleId id) const {
  const auto newest = newest_.find(id);
  return newest == newest_.end() ? std::nullopt : std::optional(held_.at(newest->second).device);
}

void RouteTable::drop(std::map<std::uint64_t, Held>::iterator held) {
  const auto newest = newest_.find(held->second.id);
  if (newest != newest_.end() && newest->second == held->first) {
    newest_.erase(newest);
  }
  --devices_[held->second.device].num_held;
  held_.erase(held);
}

bool RouteTable::end(std::uint64_t ticket) {
  const auto held = held_.find(ticket);
  if (held == held_.end()) {
    return false;
  }
  drop(held);
  return true;
}

std::vector<std::pair<std::uint64_t, SampleId>> RouteTable::forget(std::size_t device,
                                                                   const std::string& reason) {
  std::vector<std::pair<std::uint64_t, SampleId>> lost;
  if (!devices_.at(device).serves) {
    return lost;
  }
  devices_[device].serves = false;
  last_reason_ = reason;
  for (auto it = held_.begin(); it != held_.end();) {
    const auto held = it++;
    if (held->second.device == device) {
      lost.emplace_back(held->first, held->second.id);
      drop(held);
    }
  }
  return lost;
}

}  // namespace tidemill::actors
