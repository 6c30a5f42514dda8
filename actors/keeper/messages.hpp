// SPDX-License-Identifier: Apache-2.0
// The messages of the version keeper.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <caf/actor_control_block.hpp>

#include "base/clock.hpp"

namespace tidemill::actors {

/// Asks for slots for whole groups.
struct AdmissionRequest {
  std::uint32_t max_groups = 1;
  Duration wait{0};  // how long the keeper may delay a reply without slots
};

/// The admitted groups. If there are none, `waiting_for` gives the reason.
struct Admission {
  std::uint32_t groups = 0;
  std::uint64_t first_group = 0;  // id of the first of them; the others follow it
  std::uint64_t min_step = 0;     // of policy versions: no older one may generate the groups
  std::string waiting_for;
};

/// The state of a device in a run.
enum class DeviceState : std::uint8_t {
  kJoining,      // it loads its first version and gets no requests yet
  kServing,      // it gets versions and requests
  kLeaving,      // it finishes its pending requests, and still gets versions
  kLeft,         // it gets neither versions nor requests, but may join again
  kQuarantined,  // it gets neither in this incarnation
};

/// What a device serves.
struct DeviceStatus {
  std::string name;
  std::uint64_t serving_step = 0;      // of the weights that it has accepted
  std::uint64_t loading_step = 0;      // of those that it is switching to, or `serving_step`
  std::string quarantine_reason = {};  // why it is quarantined; empty: it is not
  DeviceState state = DeviceState::kServing;
};

/// A device that joins a run. Made by `join_request`.
struct DeviceJoin {
  std::string name;              // in the run; not empty
  caf::strong_actor_ptr device;  // a `ServingActor`
  /// Gets `atom::quarantine` with a `QuarantinedDevice` if the device is quarantined. May be null.
  caf::strong_actor_ptr listener = {};
};

/// The keeper's versions and its counts of rows.
struct KeeperStatus {
  std::uint64_t step = 0;  // of the last published version
  std::uint32_t incarnation = 0;
  std::int64_t capacity = 0;  // rows that may be admitted now
  std::int64_t running = 0;   // rows whose response is not finished
  std::int64_t accepted = 0;  // see `AdmissionState::accepted`
  std::uint64_t admitted_groups = 0;
  std::uint64_t serving_step = 0;  // see `DeviceRoster::serving_step`
  std::vector<DeviceStatus> devices;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, AdmissionRequest& x) {
  return f(x.max_groups, x.wait);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, Admission& x) {
  return f(x.groups, x.first_group, x.min_step, x.waiting_for);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, DeviceStatus& x) {
  return f(x.name, x.serving_step, x.loading_step, x.quarantine_reason, x.state);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, DeviceJoin& x) {
  return f(x.name, x.device, x.listener);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, KeeperStatus& x) {
  return f(x.step, x.incarnation, x.capacity, x.running, x.accepted, x.admitted_groups,
           x.serving_step, x.devices);
}

}  // namespace tidemill::actors
