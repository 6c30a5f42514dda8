// SPDX-License-Identifier: Apache-2.0
#include "actors/keeper/device_roster.hpp"

#include <algorithm>
#include <utility>

#include "base/check.hpp"

namespace tidemill::actors {
namespace {

// Returns whether the run waits for the versions of the device.
bool in_use(const DeviceStatus& device) {
  return device.state == DeviceState::kServing || device.state == DeviceState::kLeaving;
}

// Returns whether the device gets versions.
bool loads(const DeviceStatus& device) {
  return in_use(device) || device.state == DeviceState::kJoining;
}

}  // namespace

DeviceRoster::DeviceRoster(GenerationOrder order, std::uint64_t step,
                           const std::vector<std::string>& names)
    : order_(order), newest_(step), serving_(step), begun_(step) {
  for (const std::string& name : names) {
    devices_.push_back({{name, step, step, "", DeviceState::kServing}});
  }
}

void DeviceRoster::publish(std::uint64_t step) {
  TIDEMILL_CHECK(step == newest_ + 1) << step << " after " << newest_;
  newest_ = step;
}

std::optional<std::size_t> DeviceRoster::find(const std::string& name) const {
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    if (devices_[i].status.name == name) {
      return i;
    }
  }
  return std::nullopt;
}

bool DeviceRoster::any_loading() const {
  return std::ranges::any_of(devices_, [](const Device& device) { return device.load != 0; });
}

bool DeviceRoster::any_switching() const {
  return std::ranges::any_of(devices_, [](const Device& device) {
    return device.load != 0 && device.status.state != DeviceState::kJoining;
  });
}

std::vector<DueLoad> DeviceRoster::begin_loads(const std::function<bool(std::uint64_t)>& may_load) {
  std::vector<DueLoad> due;
  std::uint64_t first = oldest_needed();
  std::uint64_t next = newest_;
  if (order_ == GenerationOrder::kFixed) {
    next = std::min(serving_step() + 1, newest_);
    if (next == serving_step() || !may_load(next)) {
      next = serving_step();
    } else if (!any_loading()) {
      first = next;
    } else if (!any_switching()) {
      return due;  // first loads hold the version up: another one would prolong that
    }
  }
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    Device& device = devices_[i];
    const bool joins = device.status.state == DeviceState::kJoining;
    const bool switches = in_use(device.status) && device.status.serving_step < next;
    if (device.load == 0 && (joins || switches)) {
      device.status.loading_step = joins ? first : next;
      device.load = ++last_load_;
      begun_ = std::max(begun_, device.status.loading_step);
      due.push_back({i, device.status.loading_step, device.load});
    }
  }
  return due;
}

bool DeviceRoster::end_load(const DueLoad& load) {
  if (!awaits(load)) {
    return false;
  }
  Device& device = devices_[load.device];
  device.load = 0;
  device.status.serving_step = device.status.loading_step;
  const bool joined = device.status.state == DeviceState::kJoining;
  if (joined) {
    device.status.state = DeviceState::kServing;
  }
  serving_ = serving_step();
  return joined;
}

Result<std::size_t> DeviceRoster::join(const std::string& name) {
  if (name.empty()) {
    return invalid_argument("a device that joins needs a name");
  }
  const DeviceStatus joining{name, 0, 0, "", DeviceState::kJoining};
  const auto known = find(name);
  if (!known.has_value()) {
    if (devices_.size() >= kMaxDevices) {
      return Status(Errc::kResourceExhausted, "the run has had " + std::to_string(kMaxDevices) +
                                                  " devices in this incarnation, the maximum");
    }
    devices_.push_back({joining});
    return devices_.size() - 1;
  }
  Device& device = devices_[*known];
  if (device.status.state == DeviceState::kQuarantined) {
    return Status(Errc::kUnavailable, name + " is quarantined: " + device.status.quarantine_reason);
  }
  if (device.status.state != DeviceState::kLeft) {
    return invalid_argument(name + ": a device of this name is in the run");
  }
  device.status = joining;
  return *known;
}

Result<std::size_t> DeviceRoster::leave(const std::string& name) {
  const auto known = find(name);
  if (!known.has_value()) {
    return Status(Errc::kNotFound, "the run has no device " + name);
  }
  DeviceStatus& device = devices_[*known].status;
  switch (device.state) {
    case DeviceState::kJoining: return Status(Errc::kUnavailable, name + " is joining");
    case DeviceState::kLeaving: return Status(Errc::kUnavailable, name + " is leaving");
    case DeviceState::kLeft: return Status(Errc::kNotFound, name + " has left");
    case DeviceState::kQuarantined:
      return Status(Errc::kNotFound, name + " is quarantined: " + device.quarantine_reason);
    case DeviceState::kServing: break;
  }
  if (num_serving() == 1) {
    return invalid_argument(name + " is the last device that serves: let another one join first");
  }
  device.state = DeviceState::kLeaving;
  return *known;
}

bool DeviceRoster::end_leave(std::size_t device) {
  Device& left = devices_.at(device);
  if (left.status.state != DeviceState::kLeaving) {
    return false;
  }
  left.status.state = DeviceState::kLeft;
  left.status.loading_step = left.status.serving_step;
  left.load = 0;
  serving_ = serving_step();
  return true;
}

bool DeviceRoster::quarantine(std::size_t device, std::string reason) {
  Device& failed = devices_.at(device);
  if (!loads(failed.status)) {
    return false;
  }
  failed.status.state = DeviceState::kQuarantined;
  failed.status.quarantine_reason = reason.empty() ? "no reason given" : std::move(reason);
  failed.status.loading_step = failed.status.serving_step;
  failed.load = 0;
  serving_ = serving_step();
  return true;
}

std::size_t DeviceRoster::count(DeviceState state) const {
  return static_cast<std::size_t>(std::ranges::count_if(
      devices_, [state](const Device& device) { return device.status.state == state; }));
}

std::uint64_t DeviceRoster::serving_step() const {
  std::uint64_t oldest = newest_;
  bool any = false;
  for (const Device& device : devices_) {
    if (in_use(device.status)) {
      oldest = std::min(oldest, device.status.serving_step);
      any = true;
    }
  }
  return any ? oldest : serving_;
}

std::uint64_t DeviceRoster::oldest_needed() const {
  return order_ == GenerationOrder::kFree ? newest_ : begun_;
}

std::vector<DeviceStatus> DeviceRoster::devices() const {
  std::vector<DeviceStatus> all;
  for (const Device& device : devices_) {
    all.push_back(device.status);
  }
  return all;
}

}  // namespace tidemill::actors
