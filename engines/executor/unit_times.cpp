// SPDX-License-Identifier: Apache-2.0
#include "engines/executor/unit_times.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>

namespace tidemill::engines {
namespace {

constexpr double kStep = 0.125;  // the weight of a new time
constexpr double kDeviations = 2.0;

UnitKind rounded(UnitKind kind) {
  kind.span = kind.span > 0
                  ? static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(kind.span)))
                  : 0;
  return kind;
}

Duration to_duration(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

UnitTime longer(const UnitTime& a, const UnitTime& b) {
  return {std::max(a.expected, b.expected), std::max(a.bound, b.bound)};
}

bool is_similar(const UnitKind& a, const UnitKind& b) {
  return a.stage == b.stage && a.part == b.part;
}

}  // namespace

void UnitTimes::add(const UnitKind& kind, Duration spent) {
  if (times_.size() >= kMaxKinds) {
    times_.clear();
  }
  const double seconds = std::chrono::duration<double>(spent).count();
  const auto [it, is_new] = times_.try_emplace(rounded(kind), Times{seconds, 0.0});
  Times& times = it->second;
  if (!is_new) {
    const double difference = seconds - times.mean;
    times.mean += kStep * difference;
    times.deviation += kStep * (std::abs(difference) - times.deviation);
  }
}

UnitTime UnitTimes::predict(const UnitKind& kind) const {
  const UnitKind wanted = rounded(kind);
  const auto time_of = [](const Times& times, double factor) {
    return UnitTime{to_duration(factor * times.mean),
                    to_duration(factor * (times.mean + kDeviations * times.deviation))};
  };
  const auto found = times_.find(wanted);
  if (found != times_.end()) {
    return time_of(found->second, 1.0);
  }
  UnitTime scaled;
  UnitTime longest;
  for (const auto& [other, times] : times_) {
    longest = longer(longest, time_of(times, 1.0));
    if (is_similar(other, wanted)) {
      const double rows = other.rows > 0 && wanted.rows > 0
                              ? static_cast<double>(wanted.rows) / static_cast<double>(other.rows)
                              : 1.0;
      scaled = longer(scaled, time_of(times, rows));
    }
  }
  return scaled.bound > Duration::zero() ? scaled : longest;
}

}  // namespace tidemill::engines
