// SPDX-License-Identifier: Apache-2.0
// Tracks which version each device serves and which version it loads next. Does not depend on CAF.
//
// The states of a device, and the events that change them:
//
//   (new), left      -> joining      `join`
//   joining          -> serving      the device has accepted its first version
//   serving          -> switching    `begin_loads` returned a load for the device
//   switching        -> serving      the device has accepted the version
//   serving          -> leaving      `leave`, if another device serves
//   leaving          -> left         `end_leave`: the requests of the device have ended
//   any but left     -> quarantined  the device ended, refused a version, or did not reply in time
//
// `DeviceStatus` has no state for switching: the device is `kServing` or `kLeaving`, and its
// `loading_step` differs from its `serving_step`. A quarantined device stays quarantined for the
// incarnation, and the roster does not wait for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "actors/keeper/messages.hpp"
#include "base/result.hpp"

namespace tidemill::actors {

/// When devices load new weights.
enum class GenerationOrder : std::uint8_t {
  /// A device loads the newest version as soon as it has accepted its previous one. It skips
  /// versions that are no longer the newest.
  kFree,
  /// Version k - max_staleness generates all of batch k. All devices load the weights of a step
  /// together, once they have accepted the version before and every row that older steps must
  /// generate is finished. Joining devices count too, so their first load delays the next version.
  /// Once that version is due, a device that asks to join waits and loads it together with the
  /// others.
  kFixed,
};

/// How many devices an incarnation may have, including those that have left.
inline constexpr std::size_t kMaxDevices = 256;

/// A load that must begin now.
struct DueLoad {
  std::size_t device = 0;  // index
  std::uint64_t step = 0;
  std::uint64_t number = 0;  // of the load, counted from 1 over all devices
};

/// Tracks the versions of the devices of one incarnation. A value type.
class DeviceRoster {
public:
  DeviceRoster() = default;
  /// Creates a roster of devices with these names, all serving `step`, the newest published one.
  DeviceRoster(GenerationOrder order, std::uint64_t step, const std::vector<std::string>& names);

  /// Records the publication of `step`. Requires that it is the one after the newest.
  void publish(std::uint64_t step);

  /// Returns the loads to begin now, ordered by device, and marks their devices as loading.
  /// `may_load(step)` returns whether every row that older steps must generate is finished. It is
  /// called only with `GenerationOrder::kFixed`.
  [[nodiscard]] std::vector<DueLoad> begin_loads(
      const std::function<bool(std::uint64_t)>& may_load);

  /// Returns whether the roster waits for this load of `begin_loads`. It does not if the load has
  /// ended, or if its device has left or been quarantined since the load began.
  [[nodiscard]] bool awaits(const DueLoad& load) const {
    return devices_.at(load.device).load == load.number;
  }

  /// Records that the device accepted the version of this load. Ignored unless `awaits(load)`.
  /// Returns whether this load made a joining device serve. For a failed load, call `quarantine`
  /// instead.
  bool end_load(const DueLoad& load);

  /// Adds a device, which loads a version before it serves. Returns its index. A device that has
  /// left may join again, and has the same index.
  /// Errors: those of `atom::join` (`RosterActor`), except for the failure of the load.
  [[nodiscard]] Result<std::size_t> join(const std::string& name);

  /// Begins to remove the device of this name. Returns its index.
  /// Errors: `kNotFound`, `kUnavailable`, `kInvalidArgument` as for `atom::leave`.
  [[nodiscard]] Result<std::size_t> leave(const std::string& name);

  /// Records that the requests of a leaving device have ended: it has left. Returns false, and
  /// changes nothing, if the device is not leaving, for example because it is quarantined.
  bool end_leave(std::size_t device);

  /// Quarantines the device at this index. Returns false if it already was or has left, and then
  /// changes nothing.
  bool quarantine(std::size_t device, std::string reason);

  /// Returns how many devices get requests.
  [[nodiscard]] std::size_t num_serving() const { return count(DeviceState::kServing); }
  /// Returns how many devices are joining.
  [[nodiscard]] std::size_t num_joining() const { return count(DeviceState::kJoining); }
  /// Returns the smallest `DeviceStatus::serving_step` of the serving and leaving devices. Such a
  /// device may still be finishing responses of the version before. If there is none, returns the
  /// last such value. With `GenerationOrder::kFree` the result decreases if a device joins with an
  /// older version than the others serve.
  [[nodiscard]] std::uint64_t serving_step() const;
  /// Returns the smallest step that a device, present or joining later, may still have to load. The
  /// weights of older steps are no longer needed. With `GenerationOrder::kFixed`, the serving and
  /// leaving devices serve it or are switching to it, so every row that older steps must generate
  /// is finished.
  [[nodiscard]] std::uint64_t oldest_needed() const;
  [[nodiscard]] const DeviceStatus& status(std::size_t device) const {
    return devices_.at(device).status;
  }
  [[nodiscard]] std::vector<DeviceStatus> devices() const;

private:
  struct Device {
    DeviceStatus status;
    std::uint64_t load = 0;  // number of the load that the roster waits for; 0: none
  };

  [[nodiscard]] std::optional<std::size_t> find(const std::string& name) const;
  [[nodiscard]] bool any_loading() const;
  [[nodiscard]] bool any_switching() const;
  [[nodiscard]] std::size_t count(DeviceState state) const;

  GenerationOrder order_ = GenerationOrder::kFree;
  std::uint64_t newest_ = 0;     // published
  std::uint64_t serving_ = 0;    // the last `serving_step` with a serving or leaving device
  std::uint64_t begun_ = 0;      // the newest step that a device has begun to load
  std::uint64_t last_load_ = 0;  // number
  std::vector<Device> devices_;
};

}  // namespace tidemill::actors
