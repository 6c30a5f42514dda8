// SPDX-License-Identifier: Apache-2.0
#include "actors/keeper/device_roster.hpp"

#include <algorithm>
#include <utility>

#include "base/check.hpp"

namespace tidemill::actors {
namespace {

bool in_use(const DeviceStatus& device) {
  return device.quarantine.empty();
}

}  // namespace

DeviceRoster::DeviceRoster(GenerationOrder order, std::uint64_t step,
                           const std::vector<std::string>& names)
    : order_(order), newest_(step), serving_(step) {
  for (const std::string& name : names) {
    devices_.push_back({name, step, step, ""});
  }
}

void DeviceRoster::publish(std::uint64_t step) {
  TIDEMILL_CHECK(step == newest_ + 1) << step << " after " << newest_;
  newest_ = step;
}

bool DeviceRoster::any_switching() const {
  return std::ranges::any_of(devices_, [](const DeviceStatus& device) {
    return in_use(device) && device.loading_step != device.serving_step;
  });
}

std::vector<DueLoad> DeviceRoster::begin_loads(const std::function<bool(std::uint64_t)>& may_load) {
  std::uint64_t next = newest_;
  if (order_ == GenerationOrder::kFixed) {
    next = std::min(serving_step() + 1, newest_);
    if (any_switching() || next == serving_step() || !may_load(next)) {
      return {};
    }
  }
  std::vector<DueLoad> loads;
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    DeviceStatus& device = devices_[i];
    if (in_use(device) && device.loading_step == device.serving_step &&
        device.serving_step < next) {
      device.loading_step = next;
      loads.push_back({i, next});
    }
  }
  return loads;
}

void DeviceRoster::end_load(std::size_t device) {
  DeviceStatus& ended = devices_.at(device);
  if (in_use(ended)) {
    ended.serving_step = ended.loading_step;
    serving_ = serving_step();
  }
}

bool DeviceRoster::quarantine(std::size_t device, std::string reason) {
  DeviceStatus& failed = devices_.at(device);
  if (!in_use(failed)) {
    return false;
  }
  failed.quarantine = reason.empty() ? "no reason given" : std::move(reason);
  failed.loading_step = failed.serving_step;
  serving_ = serving_step();
  return true;
}

std::size_t DeviceRoster::num_in_use() const {
  return static_cast<std::size_t>(std::ranges::count_if(devices_, in_use));
}

std::uint64_t DeviceRoster::serving_step() const {
  std::uint64_t oldest = newest_;
  bool any = false;
  for (const DeviceStatus& device : devices_) {
    if (in_use(device)) {
      oldest = std::min(oldest, device.serving_step);
      any = true;
    }
  }
  return any ? oldest : serving_;
}

std::uint64_t DeviceRoster::oldest_needed() const {
  std::uint64_t oldest = newest_ + 1;
  for (const DeviceStatus& device : devices_) {
    if (in_use(device) && device.loading_step < newest_) {
      oldest =
          std::min(oldest, order_ == GenerationOrder::kFree ? newest_ : device.loading_step + 1);
    }
  }
  return oldest;
}

}  // namespace tidemill::actors
