// SPDX-License-Identifier: Apache-2.0
// Steps between rewards and advantages: penalties for over-long responses, and a filter for groups
// without a training signal.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.hpp"
#include "base/result.hpp"

namespace tidemill::engines {

/// Where the penalty for long responses begins and how it grows.
struct OverlongOptions {
  /// Units: response tokens.
  std::int64_t max_response = 0;
  /// The penalty starts this many tokens before `max_response`. In 1..max_response.
  std::int64_t buffer = 0;
  double factor = 1.0;
  /// Counts at most `buffer` tokens of excess, so that the penalty is at most `factor`.
  bool cap = false;
};

/// Checks that the options are in range.
/// Errors: `bad_option`.
[[nodiscard]] Status validate(const OverlongOptions& options);

/// The rewards and lengths that `shape_overlong` reads.
template <class Real>
struct OverlongInputs {
  std::span<const Real> rewards;          // (N)
  std::span<const std::int64_t> lengths;  // (N) response tokens
  std::span<const SampleId> ids;          // (N) or empty: names samples in refusals
};

/// The outputs of `shape_overlong`. Borrows: all spans.
template <class Real>
struct OverlongOutputs {
  std::span<Real> penalty;  // (N) <= 0
  std::span<Real> rewards;  // (N) reward + penalty; may alias the input
};

/// Computes `penalty = min(-excess / buffer * factor, 0)`, where
/// `excess = length - (max_response - buffer)`.
/// Source: Yu et al. 2025, arXiv:2503.14476, section 3.4 (DAPO).
/// Errors: `bad_shape`, `bad_option`, `bad_length`, `non_finite` naming the sample,
/// `non_finite_result`.
template <class Real>
[[nodiscard]] Status shape_overlong(const OverlongInputs<Real>& inputs,
                                    const OverlongOptions& options,
                                    const OverlongOutputs<Real>& out);

/// The condition on the metrics of a group that is kept.
enum class GroupFilterRule : std::uint8_t {
  kNotAllEqual,      // not all values are equal
  kMeanInOpenRange,  // low < mean < high
};

/// Configures `filter_groups`.
struct GroupFilterOptions {
  GroupFilterRule rule = GroupFilterRule::kNotAllEqual;
  /// Whether `kNotAllEqual` keeps groups with a single sample.
  bool keep_singletons = true;
  double low = 0.0;
  double high = 1.0;
};

/// The metric that `filter_groups` reads, such as the reward, and the group of each sample.
template <class Real>
struct GroupFilterInputs {
  std::span<const Real> metric;     // (N)
  std::span<const GroupId> groups;  // (N), in any order
  std::span<const SampleId> ids;    // (N) or empty: names samples in refusals
};

/// The decision of `filter_groups`, by sample and by group.
struct GroupFilterResult {
  std::vector<std::uint8_t> keep;    // (N) 0 or 1
  std::vector<GroupId> kept_groups;  // in order of first appearance
};

/// Decides which groups are kept for training.
/// Source: Yu et al. 2025, arXiv:2503.14476, section 3.2 (dynamic sampling).
/// Errors: `bad_shape`, `bad_option`, `non_finite` naming the sample.
template <class Real>
[[nodiscard]] Result<GroupFilterResult> filter_groups(const GroupFilterInputs<Real>& inputs,
                                                      const GroupFilterOptions& options);

}  // namespace tidemill::engines
