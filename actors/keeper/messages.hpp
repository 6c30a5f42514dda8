// SPDX-License-Identifier: Apache-2.0
// What is told to the version keeper and what it grants.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.hpp"

namespace tidemill::actors {

/// Asks for places for whole groups.
struct AdmissionRequest {
  std::uint32_t max_groups = 1;
  Duration wait{0};
};

/// Places granted, or none and why.
struct Admission {
  std::uint32_t groups = 0;
  std::uint64_t first_group = 0;
  std::uint64_t min_step = 0;
  std::string waiting_for;
};

/// Where the keeper stands.
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
