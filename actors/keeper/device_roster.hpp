// SPDX-License-Identifier: Apache-2.0
// Which devices serve which version, and which version each of them loads next. Without CAF.
//
// Each device is in one of three states:
//
//   serving     -> switching    `begin_loads` names a version for it
//   switching   -> serving      it has accepted the version
//   serving     -> quarantined  it has failed otherwise, for example by ending
//   switching   -> quarantined  it has refused the version, or did not reply in time
//
// A quarantined device stays quarantined for the incarnation. The roster does not wait for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "actors/keeper/messages.hpp"

namespace tidemill::actors {

/// When devices load new weights.
enum class GenerationOrder : std::uint8_t {
  /// Each device by itself, as soon as it has accepted the version before. It skips versions that
  /// are no longer the newest.
  kFree,
  /// Version k - max_staleness generates all of batch k: the weights of step s are loaded once
  /// every row that older steps must generate is finished, by all devices together, and after all
  /// of them have accepted the version before.
  kFixed,
};

/// A version that a device shall load now.
struct DueLoad {
  std::size_t device = 0;  // index
  std::uint64_t step = 0;
};

/// Tracks the versions of the devices of one incarnation. A value.
class DeviceRoster {
public:
  DeviceRoster() = default;
  /// All devices, of these names, serve `step`, which is the newest one published.
  DeviceRoster(GenerationOrder order, std::uint64_t step, const std::vector<std::string>& names);

  /// Records the publication of `step`. Requires that it is the one after the newest.
  void publish(std::uint64_t step);

  /// Returns the loads to begin now, ordered by device, and counts their devices as switching.
  /// `may_load(step)` returns whether every row that older steps must generate is finished; only
  /// `GenerationOrder::kFixed` asks.
  [[nodiscard]] std::vector<DueLoad> begin_loads(
      const std::function<bool(std::uint64_t)>& may_load);

  /// The device at this index has accepted the version that it was to load. Ignored if the device
  /// is quarantined.
  void end_load(std::size_t device);

  /// Quarantines the device at this index. Returns false if it already was, and keeps the first
  /// reason.
  bool quarantine(std::size_t device, std::string reason);

  /// Returns how many devices are not quarantined.
  [[nodiscard]] std::size_t num_in_use() const;
  /// Returns the oldest version that a device in use has accepted as its newest. It may still be
  /// ending responses of the version before.
  [[nodiscard]] std::uint64_t serving_step() const;
  /// Returns the smallest step that a device may still have to load, or the one after the newest if
  /// there is none. The contents of older steps are no longer needed.
  [[nodiscard]] std::uint64_t oldest_needed() const;
  [[nodiscard]] const std::vector<DeviceStatus>& devices() const noexcept { return devices_; }

private:
  [[nodiscard]] bool any_switching() const;

  GenerationOrder order_ = GenerationOrder::kFree;
  std::uint64_t newest_ = 0;   // published
  std::uint64_t serving_ = 0;  // `serving_step`, once no device is in use
  std::vector<DeviceStatus> devices_;
};

}  // namespace tidemill::actors
