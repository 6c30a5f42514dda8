// SPDX-License-Identifier: Apache-2.0
// The messages of the version keeper.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.hpp"

namespace tidemill::actors {

/// Asks for slots for whole groups.
struct AdmissionRequest {
  std::uint32_t max_groups = 1;
  Duration wait{0};
};

/// The groups admitted, or none and the reason.
struct Admission {
  std::uint32_t groups = 0;
  std::uint64_t first_group = 0;
  std::uint64_t min_step = 0;
  std::string waiting_for;
};

/// The keeper's version and counts.
struct KeeperStatus {
  std::uint64_t step = 0;
  std::uint32_t incarnation = 0;
  std::int64_t capacity = 0;
  std::int64_t running = 0;
  std::int64_t accepted = 0;
  std::uint64_t admitted_groups = 0;
  std::uint64_t serving_step = 0;
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
typename Inspector::result_type inspect(Inspector& f, KeeperStatus& x) {
  return f(x.step, x.incarnation, x.capacity, x.running, x.accepted, x.admitted_groups,
           x.serving_step);
}

}  // namespace tidemill::actors
