// SPDX-License-Identifier: Apache-2.0
// Golden cases of group and token advantages.
#include <span>
#include <vector>

#include "engines/rl/group_advantage.hpp"
#include "engines/rl/token_advantage.hpp"
#include "tests/engines/rl/golden_case.hpp"

namespace tidemill::engines::golden {
namespace {

template <class Real>
std::vector<double> widened(const std::vector<Real>& values) {
  return {values.begin(), values.end()};
}

void read_singleton(CaseOptions& options, SingletonRule& rule) {
  options.read<SingletonRule>("singleton", rule,
                              {{"zero", SingletonRule::kZero},
                               {"raw", SingletonRule::kRaw},
                               {"refuse", SingletonRule::kRefuse}});
}

void read_whitening(CaseOptions& options, WhitenOptions& whitening) {
  options.read("ddof", whitening.ddof);
  options.read("eps", whitening.eps);
  options.read<EpsMode>("eps_mode", whitening.eps_mode,
                        {{"add", EpsMode::kAdd}, {"max", EpsMode::kMax}});
}

void read_masked(CaseOptions& options, MaskedSteps& masked) {
  options.read<MaskedSteps>("masked", masked,
                            {{"skip", MaskedSteps::kSkip}, {"zero_step", MaskedSteps::kZeroStep}});
}

template <class Real>
Outcome run_group_advantage(const std::string& op, CaseInputs<Real>& in, CaseOptions& options) {
  const std::vector<GroupId> groups = in.groups();
  const GroupRewards<Real> samples{in.values("rewards"), groups, {}};
  std::vector<Real> advantages(samples.rewards.size());
  Status status;
  if (op == "grpo_advantage") {
    GrpoAdvantageOptions grpo;
    options.read<AdvantageScale>("std", grpo.scale,
                                 {{"group", AdvantageScale::kGroupStd},
                                  {"batch", AdvantageScale::kBatchStd},
                                  {"batch_centered", AdvantageScale::kBatchCenteredStd},
                                  {"none", AdvantageScale::kNone}});
    options.read("ddof", grpo.ddof);
    options.read("eps", grpo.eps);
    read_singleton(options, grpo.singleton);
    status = options.finish();
    if (status.ok()) {
      status = grpo_advantages<Real>(samples, grpo, advantages);
    }
  } else if (op == "rloo_advantage") {
    RlooAdvantageOptions rloo;
    options.read("normalize", rloo.normalize);
    options.read("eps", rloo.eps);
    read_singleton(options, rloo.singleton);
    status = options.finish();
    if (status.ok()) {
      status = rloo_advantages<Real>(samples, rloo, advantages);
    }
  } else {
    ADD_FAILURE() << "unknown operation: " << op;
  }
  return {status, {{"advantages", widened(advantages)}}};
}

template <class Real>
Outcome run_token_rewards(CaseInputs<Real>& in, CaseOptions& options) {
  TokenRewardOptions shaping;
  options.read("beta", shaping.kl_coefficient);
  options.read("reward_clip", shaping.reward_clip);
  if (Status status = options.finish(); !status.ok()) {
    return {status, {}};
  }
  std::vector<Real> out(in.rows().num_positions());
  const Status status =
      token_rewards<Real>({in.rows(), in.values("rewards"), in.tokens("kl")}, shaping, out);
  return {status, {{"token_rewards", in.padded(out)}}};
}

template <class Real>
Outcome run_reinforce(CaseInputs<Real>& in, CaseOptions& options) {
  ReinforceOptions reinforce;
  options.read("gamma", reinforce.gamma);
  options.read("whiten", reinforce.whiten);
  read_whitening(options, reinforce.whitening);
  read_masked(options, reinforce.masked);
  if (Status status = options.finish(); !status.ok()) {
    return {status, {}};
  }
  std::vector<Real> returns(in.rows().num_positions());
  std::vector<Real> advantages(in.rows().num_positions());
  const Status status = reinforce_advantages<Real>({in.rows(), in.tokens("token_rewards")},
                                                   reinforce, {returns, advantages});
  return {status, {{"returns", in.padded(returns)}, {"advantages", in.padded(advantages)}}};
}

template <class Real>
Outcome run_group_baseline(CaseInputs<Real>& in, CaseOptions& options) {
  GroupBaselineOptions baseline;
  options.read("whiten", baseline.whiten);
  read_whitening(options, baseline.whitening);
  read_singleton(options, baseline.singleton);
  if (Status status = options.finish(); !status.ok()) {
    return {status, {}};
  }
  const std::vector<GroupId> groups = in.groups();
  std::vector<Real> centered(groups.size());
  std::vector<Real> advantages(in.rows().num_positions());
  const Status status = group_baseline_advantages<Real>({in.rows(), in.values("rewards"), groups},
                                                        baseline, {centered, advantages});
  return {status, {{"centered", widened(centered)}, {"advantages", in.padded(advantages)}}};
}

template <class Real>
Outcome run_remax(CaseInputs<Real>& in, CaseOptions& options) {
  enum class Variant : std::uint8_t { kRewardToGo, kOriginal };
  Variant variant = Variant::kRewardToGo;
  options.read<Variant>("variant", variant,
                        {{"reward_to_go", Variant::kRewardToGo}, {"original", Variant::kOriginal}});
  std::vector<Real> returns(in.rows().num_positions());
  std::vector<Real> advantages(in.rows().num_positions());
  if (variant == Variant::kRewardToGo) {
    Status status = options.finish();
    if (status.ok()) {
      status = remax_reward_to_go<Real>(
          {in.rows(), in.tokens("token_rewards"), in.values("baseline")}, {returns, advantages});
    }
    return {status, {{"returns", in.padded(returns)}, {"advantages", in.padded(advantages)}}};
  }
  RemaxOptions remax;
  options.read("clip", remax.clip);
  options.read("gamma", remax.gamma);
  options.read("beta", remax.kl_coefficient);
  Status status = options.finish();
  if (status.ok()) {
    status = remax_advantages<Real>(
        {in.rows(), in.values("rewards"), in.values("baseline"), in.tokens("kl")}, remax,
        advantages);
  }
  return {status, {{"advantages", in.padded(advantages)}}};
}

template <class Real>
Outcome run_gae(CaseInputs<Real>& in, CaseOptions& options) {
  GaeOptions gae_options;
  options.read("gamma", gae_options.gamma);
  options.read("lam", gae_options.lambda);
  options.read("whiten", gae_options.whiten);
  read_whitening(options, gae_options.whitening);
  read_masked(options, gae_options.masked);
  if (Status status = options.finish(); !status.ok()) {
    return {status, {}};
  }
  const std::vector<std::int64_t> flags = in.integers("truncated");
  const std::vector<std::uint8_t> truncated(flags.begin(), flags.end());
  std::vector<Real> returns(in.rows().num_positions());
  std::vector<Real> advantages(in.rows().num_positions());
  const Status status = gae<Real>({in.rows(), in.tokens("token_rewards"), in.tokens("values"),
                                   in.values("bootstrap"), truncated},
                                  gae_options, {returns, advantages});
  return {status, {{"returns", in.padded(returns)}, {"advantages", in.padded(advantages)}}};
}

template <class Real>
Outcome run_token_advantage(const std::string& op, CaseInputs<Real>& in, CaseOptions& options) {
  if (op == "token_rewards") {
    return run_token_rewards(in, options);
  }
  if (op == "reinforce_pp") {
    return run_reinforce(in, options);
  }
  if (op == "reinforce_pp_baseline") {
    return run_group_baseline(in, options);
  }
  if (op == "remax") {
    return run_remax(in, options);
  }
  if (op == "gae") {
    return run_gae(in, options);
  }
  ADD_FAILURE() << "unknown operation: " << op;
  return {};
}

TEST(GroupAdvantageGolden, EveryCase) {
  check_family("group_advantage", 79, [](const std::string& op, auto& in, CaseOptions& options) {
    return run_group_advantage(op, in, options);
  });
}

TEST(TokenAdvantageGolden, EveryCase) {
  check_family("token_advantage", 135, [](const std::string& op, auto& in, CaseOptions& options) {
    return run_token_advantage(op, in, options);
  });
}

}  // namespace
}  // namespace tidemill::engines::golden
