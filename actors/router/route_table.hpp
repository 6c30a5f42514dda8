// SPDX-License-Identifier: Apache-2.0
// Which device generates for which request. Without CAF. Private to the router.
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

/// A request on its way. Tickets increase with every request, so two requests with one sample id
/// have different tickets.
struct Route {
  std::uint64_t ticket = 0;
  std::size_t device = 0;  // index
};

/// Chooses the device of each request and counts the requests of each device. A value.
class RouteTable {
public:
  RouteTable() = default;
  /// All of `num_devices` devices serve. At most `max_held` requests are held at a time.
  RouteTable(std::size_t num_devices, std::size_t max_held)
      : devices_(num_devices), max_held_(max_held) {}

  /// Chooses the device of a request for `id`, among those that are not forgotten: the device that
  /// already has a request for `id`, because it ends that request when it gets this one, or else
  /// the first of those with the fewest requests.
  /// Errors: `kUnavailable` if no device is left, giving the reason why the last one was forgotten,
  /// or if `max_held` requests are held.
  [[nodiscard]] Result<Route> begin(SampleId id);

  /// Returns the device that has a request for `id`, or nothing.
  [[nodiscard]] std::optional<std::size_t> device_of(SampleId id) const;

  /// Ends a request. Returns whether it was held. A request of a forgotten device is not.
  bool end(std::uint64_t ticket);

  /// Forgets a device for `reason`. Returns its requests, oldest first, which are no longer held,
  /// with their ids; nothing if it was forgotten before.
  std::vector<std::pair<std::uint64_t, SampleId>> forget(std::size_t device,
                                                         const std::string& reason);

  /// Returns how many requests are held, in all or by one device.
  [[nodiscard]] std::size_t num_held() const noexcept { return held_.size(); }
  [[nodiscard]] std::size_t num_held(std::size_t device) const {
    return devices_.at(device).num_held;
  }

private:
  struct Device {
    std::size_t num_held = 0;
    bool serves = true;
  };
  struct Held {
    SampleId id;
    std::size_t device = 0;
  };

  [[nodiscard]] std::optional<std::size_t> least_loaded() const;
  void drop(std::map<std::uint64_t, Held>::iterator held);

  std::vector<Device> devices_;
  std::size_t max_held_ = 0;
  std::uint64_t last_ticket_ = 0;
  std::map<std::uint64_t, Held> held_;        // by ticket
  std::map<SampleId, std::uint64_t> newest_;  // ticket of the newest request for each id
  std::string last_reason_ = "there is none";
};

}  // namespace tidemill::actors
