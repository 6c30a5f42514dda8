// SPDX-License-Identifier: Apache-2.0
// Golden cases of the policy loss, its corrections and variants.
#include <vector>

#include "engines/rl/policy_loss.hpp"
#include "engines/rl/proximal.hpp"
#include "tests/engines/rl/golden_case.hpp"
#include "tests/engines/rl/loss_options.hpp"

namespace tidemill::engines::golden {
namespace {

void read_reject_rule(CaseOptions& options, RejectRule& rule) {
  options.read<RejectStat>("stat", rule.stat,
                           {{"ratio", RejectStat::kRatio},
                            {"k1", RejectStat::kK1},
                            {"k2", RejectStat::kK2},
                            {"k3", RejectStat::kK3}});
  options.read<RejectScope>("scope", rule.scope,
                            {{"token", RejectScope::kToken},
                             {"seq_sum", RejectScope::kSeqSum},
                             {"seq_mean", RejectScope::kSeqMean},
                             {"seq_max", RejectScope::kSeqMax}});
  options.read("lower", rule.lower);
  options.read("upper", rule.upper);
}

void read_correction(CaseOptions& options, RolloutCorrectionOptions& correction) {
  options.read<CorrectionLevel>(
      "level", correction.level,
      {{"token", CorrectionLevel::kToken}, {"sequence", CorrectionLevel::kSequence}});
  options.read<CorrectionRule>("rule", correction.rule,
                               {{"none", CorrectionRule::kNone},
                                {"raw", CorrectionRule::kRaw},
                                {"truncate", CorrectionRule::kTruncate},
                                {"zero", CorrectionRule::kZero},
                                {"mask", CorrectionRule::kMask},
                                {"seq_mask", CorrectionRule::kSeqMask}});
  options.read<SequenceWeight>(
      "seq_weight", correction.sequence_weight,
      {{"product", SequenceWeight::kProduct}, {"geometric", SequenceWeight::kGeometric}});
  options.read("upper", correction.upper);
  options.read("lower", correction.lower);
  options.read("log_clamp", correction.log_clamp);
  options.read("batch_normalize", correction.batch_normalize);
  if (const Json* rules = options.take("reject")) {
    for (const Json& rule : *rules) {
      options.nested(rule, [&](CaseOptions& inner) {
        read_reject_rule(inner, correction.reject.emplace_back());
      });
    }
  }
}

void read_ratio(CaseOptions& options, PolicyLossOptions& policy) {
  options.read<PolicyLossKind>("kind", policy.kind,
                               {{"ppo", PolicyLossKind::kPpo},
                                {"reinforce", PolicyLossKind::kReinforce},
                                {"cispo", PolicyLossKind::kCispo},
                                {"sapo", PolicyLossKind::kSapo}});
  options.read<RatioLevel>("ratio_level", policy.ratio_level,
                           {{"token", RatioLevel::kToken}, {"sequence", RatioLevel::kSequence}});
  options.read<SequenceGradient>(
      "seq_grad", policy.sequence_gradient,
      {{"sequence", SequenceGradient::kSequence}, {"token", SequenceGradient::kToken}});
  options.read<SequenceAdvantage>(
      "seq_adv", policy.sequence_advantage,
      {{"own", SequenceAdvantage::kOwn}, {"mean", SequenceAdvantage::kRowMean}});
  options.read("log_ratio_clamp", policy.log_ratio_clamp);
  options.read("clip_low", policy.clip_low);
  options.read("clip_high", policy.clip_high);
  options.read("ratio_cap", policy.ratio_cap);
  options.read("dual_clip", policy.dual_clip);
  options.read("cispo_low", policy.cispo_low);
  options.read("cispo_high", policy.cispo_high);
  options.read("tau_pos", policy.sapo_tau_positive);
  options.read("tau_neg", policy.sapo_tau_negative);
}

void read_weights_and_kl(CaseOptions& options, PolicyLossOptions& policy) {
  if (const Json* correction = options.take("rollout_correction");
      correction != nullptr && !correction->is_null()) {
    options.nested(*correction, [&](CaseOptions& inner) {
      read_correction(inner, policy.rollout_correction.emplace());
    });
  }
  options.read<RejectDenominator>(
      "reject_denominator", policy.reject_denominator,
      {{"original", RejectDenominator::kOriginal}, {"kept", RejectDenominator::kKept}});
  options.read<WeightDenominator>(
      "weight_denominator", policy.weight_denominator,
      {{"tokens", WeightDenominator::kTokens}, {"weights", WeightDenominator::kWeights}});
  options.read("opsm_delta", policy.off_policy_delta);
  options.read("kl_coef", policy.kl_coefficient);
  options.read<KlEstimator>("kl_kind", policy.kl.estimator,
                            {{"k1", KlEstimator::kK1},
                             {"abs", KlEstimator::kAbs},
                             {"k2", KlEstimator::kK2},
                             {"k3", KlEstimator::kK3},
                             {"k3+", KlEstimator::kK3GradientOfK2}});
  options.read("kl_input_clamp", policy.kl.input_clamp);
  options.read("kl_output_clamp", policy.kl.output_clamp);
  options.read("kl_unbiased", policy.kl.unbiased);
}

template <class Real>
Outcome run_policy_loss(CaseInputs<Real>& in, CaseOptions& options) {
  PolicyLossOptions policy;
  read_ratio(options, policy);
  read_weights_and_kl(options, policy);
  read_aggregate(options, policy.aggregate);
  if (Status status = options.finish(); !status.ok()) {
    return {status, {}};
  }
  resolve_horizon(in, policy.aggregate);
  std::vector<Real> gradient(in.rows().num_positions());
  std::vector<Real> per_token(in.rows().num_positions());
  const Result<PolicyLossReport> result = policy_loss<Real>(
      {in.rows(), in.tokens("logp"), in.tokens("old_logp"), in.tokens("advantages"),
       in.tokens("behave_logp"), in.tokens("ref_logp"), in.tokens("token_weight")},
      policy, {gradient, per_token});
  if (!result.ok()) {
    return {result.status(), {}};
  }
  const PolicyLossReport& metrics = result.value();
  const double clipped = static_cast<double>(metrics.clipped_tokens) /
                         static_cast<double>(std::max<std::int64_t>(metrics.tokens, 1));
  return {{},
          {{"loss", {metrics.loss}},
           {"grad", in.padded(gradient)},
           {"per_token", in.padded(per_token)},
           {"clip_fraction", {clipped}}}};
}

template <class Real>
Outcome run_is_weights(CaseInputs<Real>& in, CaseOptions& options) {
  RolloutCorrectionOptions correction;
  read_correction(options, correction);
  if (Status status = options.finish(); !status.ok()) {
    return {status, {}};
  }
  std::vector<Real> weights(in.rows().num_positions());
  std::vector<std::uint8_t> kept(in.rows().num_positions());
  const Status status = rollout_correction<Real>(
      {in.rows(), in.tokens("prox_logp"), in.tokens("behave_logp")}, correction, {weights, kept});
  const std::vector<Real> kept_numbers(kept.begin(), kept.end());
  return {status, {{"weights", in.padded(weights)}, {"kept_mask", in.padded(kept_numbers)}}};
}

template <class Real>
Outcome run_log_linear(CaseInputs<Real>& in, CaseOptions& options) {
  std::int64_t current_version = 0;
  options.read("current_version", current_version);
  if (Status status = options.finish(); !status.ok()) {
    return {status, {}};
  }
  const std::vector<std::int64_t> versions = in.integers("behave_version");
  std::vector<Real> alpha(in.rows().num_positions());
  std::vector<Real> proximal(in.rows().num_positions());
  const Status status = proximal_log_linear<Real>(
      {in.rows(), in.tokens("logp"), in.tokens("behave_logp"), versions, current_version},
      {alpha, proximal});
  return {status, {{"alpha", in.padded(alpha)}, {"prox_logp", in.padded(proximal)}}};
}

template <class Real>
Outcome run_policy(const std::string& op, CaseInputs<Real>& in, CaseOptions& options) {
  if (op == "policy_loss") {
    return run_policy_loss(in, options);
  }
  if (op == "is_weights") {
    return run_is_weights(in, options);
  }
  EXPECT_EQ(op, "prox_loglinear");
  return run_log_linear(in, options);
}

TEST(PolicyPpoGolden, EveryCase) {
  const auto outcomes =
      check_family("policy_ppo", 66, [](const std::string& op, auto& in, CaseOptions& options) {
        return run_policy(op, in, options);
      });
  // With global denominators, micro-batches add up to the whole batch, with bit-identical
  // gradients.
  const auto& whole = outcomes.at("ppo.whole").values;
  const auto& first = outcomes.at("ppo.micro0").values;
  const auto& second = outcomes.at("ppo.micro1").values;
  EXPECT_NEAR(first.at("loss")[0] + second.at("loss")[0], whole.at("loss")[0], 1e-14);
  std::vector<double> joined = first.at("grad");
  joined.insert(joined.end(), second.at("grad").begin(), second.at("grad").end());
  EXPECT_EQ(joined, whole.at("grad"));
}

TEST(PolicyOffPolicyGolden, EveryCase) {
  check_family("policy_offpolicy", 142, [](const std::string& op, auto& in, CaseOptions& options) {
    return run_policy(op, in, options);
  });
}

TEST(PolicyVariantsGolden, EveryCase) {
  const auto outcomes = check_family("policy_variants", 96,
                                     [](const std::string& op, auto& in, CaseOptions& options) {
                                       return run_policy(op, in, options);
                                     });
  for (const std::string prefix : {"fait.0", "fait.1", "fait.2"}) {
    EXPECT_EQ(outcomes.at(prefix + ".ones").values, outcomes.at(prefix + ".plain").values)
        << "token weights of 1 must not change a bit";
  }
}

}  // namespace
}  // namespace tidemill::engines::golden
