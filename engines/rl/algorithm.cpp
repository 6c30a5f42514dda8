// SPDX-License-Identifier: Apache-2.0
#include "engines/rl/algorithm.hpp"

#include <string>

namespace tidemill::engines {
namespace {

constexpr std::size_t kMaxNameLength = 32;

Algorithm grpo() {
  Algorithm row;
  row.name = "grpo";
  row.summary = "Group-relative advantages, clipped importance ratios, mean over sequences.";
  row.policy.aggregate.kind = Aggregation::kSeqMeanTokenMean;
  return row;
}

Algorithm dr_grpo() {
  Algorithm row;
  row.name = "dr_grpo";
  row.summary = "GRPO without dividing by the standard deviation or the length.";
  row.grpo.scale = AdvantageScale::kNone;
  row.policy.aggregate.kind = Aggregation::kBatchFixedLength;
  return row;
}

Algorithm dapo() {
  Algorithm row;
  row.name = "dapo";
  row.summary =
      "GRPO with a higher upper clip and the mean over tokens; filters groups with equal rewards.";
  row.policy.clip_high = 0.28;
  row.policy.aggregate.kind = Aggregation::kTokenMean;
  row.group_filter = GroupFilterOptions();
  return row;
}

Algorithm rloo() {
  Algorithm row;
  row.name = "rloo";
  row.summary = "Compares each reward with the mean of the other rewards in its group.";
  row.advantage = AdvantageKind::kRloo;
  row.policy.aggregate.kind = Aggregation::kSeqMeanTokenSum;
  return row;
}

}  // namespace

std::vector<Algorithm> algorithms() {
  return {grpo(), dr_grpo(), dapo(), rloo()};
}

Result<Algorithm> find_algorithm(std::string_view name) {
  std::string known;
  for (const Algorithm& row : algorithms()) {
    if (row.name == name) {
      return row;
    }
    known += (known.empty() ? "" : ", ") + row.name;
  }
  return invalid_argument("unknown algorithm " + std::string(name.substr(0, kMaxNameLength)) +
                          "; known: " + known);
}

template <class Real>
Status algorithm_advantages(const Algorithm& algorithm, const GroupRewards<Real>& samples,
                            std::span<Real> advantages) {
  return algorithm.advantage == AdvantageKind::kRloo
             ? rloo_advantages(samples, algorithm.rloo, advantages)
             : grpo_advantages(samples, algorithm.grpo, advantages);
}

template Status algorithm_advantages(const Algorithm&, const GroupRewards<float>&,
                                     std::span<float>);
template Status algorithm_advantages(const Algorithm&, const GroupRewards<double>&,
                                     std::span<double>);

}  // namespace tidemill::engines
