// SPDX-License-Identifier: Apache-2.0
// Chooses the device for each request. Does not depend on CAF. Private to the router.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.hpp"
#include "base/result.hpp"

namespace tidemill::actors {

/// Identifies a pending request and its device. Each request gets a new, larger ticket, so two
/// requests for the same sample id have different tickets.
struct Route {
  std::uint64_t ticket = 0;
  std::size_t device = 0;  // index
};

/// Chooses the device of each request and counts the requests of each device. A value type.
class RouteTable {
public:
  RouteTable() = default;
  /// All of `num_devices` devices serve. At most `max_pending` requests are pending at a time.
  RouteTable(std::size_t num_devices, std::size_t max_pending)
      : devices_(num_devices), max_pending_(max_pending) {}

  /// Adds a device that serves. Returns its index.
  std::size_t add();

  /// Lets a removed device serve again. Ignored if it is not removed.
  void restore(std::size_t device);

  /// Chooses the device for a request for `id`. If a device already has a request for `id`, chooses
  /// that device, even if it is leaving; it then cancels the earlier request. Otherwise chooses the
  /// serving device with the fewest pending requests, and of equal ones the lowest index.
  /// Errors: `kUnavailable` if `max_pending` requests are pending, or if no device serves; the
  /// message then says why the last device stopped serving.
  [[nodiscard]] Result<Route> begin(SampleId id);

  /// Returns the device that has a request for `id`, or nothing.
  [[nodiscard]] std::optional<std::size_t> device_of(SampleId id) const;

  /// Ends a request. Returns its device, or nothing if the request is not pending, for example
  /// because its device was removed.
  std::optional<std::size_t> end(std::uint64_t ticket);

  /// Gives a device no further requests, except for sample ids of which it has one. Its requests
  /// stay pending. `reason` is for the errors of `begin`. Ignored if the device does not serve.
  void begin_leave(std::size_t device, const std::string& reason);
  [[nodiscard]] bool removed(std::size_t device) const {
    return devices_.at(device).state == State::kRemoved;
  }
  /// Returns whether the device is leaving and has no requests left.
  [[nodiscard]] bool ready_to_leave(std::size_t device) const;

  /// Removes a device because of `reason` and ends its requests. Returns the tickets and sample ids
  /// of these requests, oldest first. Returns an empty list if the device was already removed.
  std::vector<std::pair<std::uint64_t, SampleId>> remove(std::size_t device,
                                                         const std::string& reason);

  /// Returns how many requests are pending, in all or at one device.
  [[nodiscard]] std::size_t num_pending() const noexcept { return pending_.size(); }
  [[nodiscard]] std::size_t num_pending(std::size_t device) const {
    return devices_.at(device).num_pending;
  }

private:
  enum class State : std::uint8_t { kServing, kLeaving, kRemoved };
  struct Device {
    std::size_t num_pending = 0;
    State state = State::kServing;
  };
  struct Pending {
    SampleId id;
    std::size_t device = 0;
  };

  [[nodiscard]] std::optional<std::size_t> least_loaded() const;
  void drop(std::map<std::uint64_t, Pending>::iterator request);

  std::vector<Device> devices_;
  std::size_t max_pending_ = 0;
  std::uint64_t last_ticket_ = 0;
  std::map<std::uint64_t, Pending> pending_;  // by ticket
  std::map<SampleId, std::uint64_t> newest_;  // ticket of the newest request for each id
  std::string last_reason_ = "there is none";
};

}  // namespace tidemill::actors
