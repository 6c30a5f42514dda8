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

Duration UnitTimes::predict(const UnitKind& kind) const {
  const UnitKind wanted = rounded(kind);
  const auto expected = [](const Times& times) {
    return times.mean + kDeviations * times.deviation;
  };
  const auto found = times_.find(wanted);
  if (found != times_.end()) {
    return to_duration(expected(found->second));
  }
  double scaled = 0.0;
  double longest = 0.0;
  for (const auto& [other, times] : times_) {
    longest = std::max(longest, expected(times));
    if (is_similar(other, wanted)) {
      const double rows = other.rows > 0 && wanted.rows > 0
                              ? static_cast<double>(wanted.rows) / static_cast<double>(other.rows)
                              : 1.0;
      scaled = std::max(scaled, rows * expected(times));
    }
  }
  return to_duration(scaled > 0.0 ? scaled : longest);
}

}  // namespace tidemill::engines
