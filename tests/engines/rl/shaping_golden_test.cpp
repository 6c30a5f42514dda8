// SPDX-License-Identifier: Apache-2.0
// Golden cases of reward shaping, group filters and the KL controller.
#include <vector>

#include "engines/rl/adaptive_kl.hpp"
#include "engines/rl/shaping.hpp"
#include "tests/engines/rl/golden_case.hpp"

namespace tidemill::engines::golden {
namespace {

template <class Real>
Outcome run_overlong(CaseInputs<Real>& in, CaseOptions& options) {
  OverlongOptions overlong;
  options.read("max_response", overlong.max_response);
  options.read("buffer", overlong.buffer);
  options.read("factor", overlong.factor);
  options.read("cap", overlong.cap);
  if (Status status = options.finish(); !status.ok()) {
    return {status, {}};
  }
  const std::vector<std::int64_t> lengths = in.integers("lengths");
  std::vector<Real> penalty(lengths.size());
  std::vector<Real> rewards(lengths.size());
  const Status status =
      shape_overlong<Real>({in.values("rewards"), lengths, {}}, overlong, {penalty, rewards});
  return {status,
          {{"penalty", {penalty.begin(), penalty.end()}},
           {"rewards", {rewards.begin(), rewards.end()}}}};
}

template <class Real>
Outcome run_group_filter(CaseInputs<Real>& in, CaseOptions& options) {
  GroupFilterOptions filter;
  options.read<GroupFilterRule>("rule", filter.rule,
                                {{"not_all_equal", GroupFilterRule::kNotAllEqual},
                                 {"mean_in_open_range", GroupFilterRule::kMeanInOpenRange}});
  options.read("keep_singletons", filter.keep_singletons);
  options.read("low", filter.low);
  options.read("high", filter.high);
  if (Status status = options.finish(); !status.ok()) {
    return {status, {}};
  }
  const std::vector<GroupId> groups = in.groups();
  const Result<GroupFilterResult> result =
      filter_groups<Real>({in.values("metric"), groups, {}}, filter);
  if (!result.ok()) {
    return {result.status(), {}};
  }
  std::vector<double> kept;
  for (const GroupId group : result.value().kept_groups) {
    kept.push_back(static_cast<double>(group.value));
  }
  return {
      {},
      {{"keep", {result.value().keep.begin(), result.value().keep.end()}}, {"kept_groups", kept}}};
}

template <class Real>
Outcome run_adaptive_kl(CaseInputs<Real>& in, CaseOptions& options) {
  AdaptiveKlOptions controller;
  options.read("init", controller.initial);
  options.read("target", controller.target);
  options.read("horizon", controller.horizon);
  options.read("clip", controller.clip);
  if (Status status = options.finish(); !status.ok()) {
    return {status, {}};
  }
  double coefficient = controller.initial;
  std::vector<double> coefficients;
  for (std::size_t i = 0; i < in.values("kl").size(); ++i) {
    const KlObservation observation{in.values("kl")[i], in.values("n_steps")[i]};
    const Result<double> updated = updated_kl_coefficient(coefficient, observation, controller);
    if (!updated.ok()) {
      return {updated.status(), {}};
    }
    coefficient = updated.value();
    coefficients.push_back(coefficient);
  }
  return {{}, {{"coef", coefficients}}};
}

TEST(ShapingGolden, EveryCase) {
  check_family("shaping", 27, [](const std::string& op, auto& in, CaseOptions& options) {
    if (op == "overlong") {
      return run_overlong(in, options);
    }
    if (op == "group_filter") {
      return run_group_filter(in, options);
    }
    EXPECT_EQ(op, "adaptive_kl");
    return run_adaptive_kl(in, options);
  });
}

}  // namespace
}  // namespace tidemill::engines::golden
