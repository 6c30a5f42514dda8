// SPDX-License-Identifier: Apache-2.0
#include "engines/rl/algorithm.hpp"

#include <algorithm>
#include <numeric>
#include <string>

namespace tidemill::engines {
namespace {

constexpr std::size_t kLongestName = 32;

/// Returns how many letters must be inserted, removed or replaced to make `a` into `b`.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

Algorithm grpo() {
  Algorithm row;
  row.name = "grpo";
  row.summary = "group-relative advantages, clipped ratios, mean over sequences";
  row.policy.aggregate.kind = Aggregation::kSeqMeanTokenMean;
  return row;
}

Algorithm dr_grpo() {
  Algorithm row;
  row.name = "dr_grpo";
  row.summary = "GRPO without division by the deviation and by the length";
  row.grpo.scale = AdvantageScale::kNone;
  row.policy.aggregate.kind = Aggregation::kBatchFixedLength;
  return row;
}

Algorithm dapo() {
  Algorithm row;
  row.name = "dapo";
  row.summary = "GRPO with a higher upper clip, mean over tokens, groups of equal rewards filtered";
  row.policy.clip_high = 0.28;
  row.policy.aggregate.kind = Aggregation::kTokenMean;
  row.group_filter = GroupFilterOptions();
  return row;
}

Algorithm rloo() {
  Algorithm row;
  row.name = "rloo";
  row.summary = "each reward compared with the mean of the others in its group";
  row.advantage = AdvantageKind::kRloo;
  row.policy.aggregate.kind = Aggregation::kSeqMeanTokenSum;
  return row;
}

}  // namespace

std::vector<Algorithm> algorithms() {
  return {grpo(), dr_grpo(), dapo(), rloo()};
}

Result<Algorithm> find_algorithm(std::string_view name) {
  const std::vector<Algorithm> table = algorithms();
  const std::string shown(name.substr(0, kLongestName));
  std::string known;
  std::string_view nearest;
  std::size_t distance = shown.size() / 2 + 1;  // farther ones would be guesses
  for (const Algorithm& row : table) {
    if (row.name == name) {
      return row;
    }
    known += (known.empty() ? "" : ", ") + std::string(row.name);
    if (const std::size_t edits = edit_distance(shown, row.name); edits < distance) {
      distance = edits;
      nearest = row.name;
    }
  }
  std::string text = "unknown algorithm " + shown + "; known: " + known;
  if (!nearest.empty()) {
    text += "; did you mean " + std::string(nearest) + "?";
  }
  return invalid_argument(std::move(text));
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
