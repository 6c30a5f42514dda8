// SPDX-License-Identifier: Apache-2.0
// Golden cases of aggregation, KL estimators, value loss and entropy bonus.
#include <vector>

#include "engines/rl/entropy_bonus.hpp"
#include "engines/rl/kl_estimators.hpp"
#include "engines/rl/value_loss.hpp"
#include "tests/engines/rl/golden_case.hpp"
#include "tests/engines/rl/loss_options.hpp"

namespace tidemill::engines::golden {
namespace {

template <class Real>
Outcome run_aggregate(CaseInputs<Real>& in, CaseOptions& options) {
  AggregateOptions aggregation;
  read_aggregate(options, aggregation);
  if (Status status = options.finish(); !status.ok()) {
    return {status, {}};
  }
  resolve_horizon(in, aggregation);
  std::vector<Real> gradient(in.rows().num_positions());
  const Result<double> loss =
      aggregate<Real>({in.rows(), in.tokens("loss")}, aggregation, gradient);
  if (!loss.ok()) {
    return {loss.status(), {}};
  }
  return {{}, {{"loss", {loss.value()}}, {"grad_loss", in.padded(gradient)}}};
}

template <class Real>
Outcome run_kl(CaseInputs<Real>& in, CaseOptions& options) {
  KlOptions kl_options;
  options.read<KlEstimator>("kind", kl_options.estimator,
                            {{"k1", KlEstimator::kK1},
                             {"abs", KlEstimator::kAbs},
                             {"k2", KlEstimator::kK2},
                             {"k3", KlEstimator::kK3},
                             {"k3+", KlEstimator::kK3GradientOfK2}});
  options.read("input_clamp", kl_options.input_clamp);
  options.read("output_clamp", kl_options.output_clamp);
  options.read("unbiased", kl_options.unbiased);
  bool clamp_after = false;
  options.read("unbiased_clamp_after", clamp_after);
  kl_options.clamp_point = clamp_after ? KlClampPoint::kProduct : KlClampPoint::kEstimator;
  if (Status status = options.finish(); !status.ok()) {
    return {status, {}};
  }
  std::vector<Real> kl(in.rows().num_positions());
  std::vector<Real> gradient(in.rows().num_positions());
  const Result<double> sum = estimate_kl<Real>(
      {in.rows(), in.tokens("logp"), in.tokens("ref_logp"), in.tokens("old_logp")}, kl_options,
      {kl, gradient});
  if (!sum.ok()) {
    return {sum.status(), {}};
  }
  return {{}, {{"kl", in.padded(kl)}, {"sum", {sum.value()}}, {"grad_sum", in.padded(gradient)}}};
}

template <class Real>
Outcome run_value_loss(CaseInputs<Real>& in, CaseOptions& options) {
  ValueLossOptions value_options;
  options.read("clip", value_options.clip);
  read_aggregate(options, value_options.aggregate);
  if (Status status = options.finish(); !status.ok()) {
    return {status, {}};
  }
  resolve_horizon(in, value_options.aggregate);
  std::vector<Real> gradient(in.rows().num_positions());
  const Result<ValueLossReport> result = value_loss<Real>(
      {in.rows(), in.tokens("values"), in.tokens("old_values"), in.tokens("returns")},
      value_options, gradient);
  if (!result.ok()) {
    return {result.status(), {}};
  }
  const ValueLossReport& metrics = result.value();
  const double clipped = static_cast<double>(metrics.clipped_tokens) /
                         static_cast<double>(std::max<std::int64_t>(metrics.tokens, 1));
  return {{},
          {{"loss", {metrics.loss}}, {"grad", in.padded(gradient)}, {"clip_fraction", {clipped}}}};
}

template <class Real>
Outcome run_entropy(CaseInputs<Real>& in, CaseOptions& options) {
  EntropyOptions entropy_options;
  options.read("coef", entropy_options.coefficient);
  read_aggregate(options, entropy_options.aggregate);
  if (Status status = options.finish(); !status.ok()) {
    return {status, {}};
  }
  resolve_horizon(in, entropy_options.aggregate);
  const std::size_t positions = in.rows().num_positions();
  const std::size_t vocabulary = in.tokens("logits").size() / positions;
  std::vector<Real> entropy(positions);
  std::vector<Real> gradient(positions * vocabulary);
  const Result<double> loss = entropy_bonus<Real>({in.rows(), in.tokens("logits"), vocabulary},
                                                  entropy_options, {entropy, gradient});
  if (!loss.ok()) {
    return {loss.status(), {}};
  }
  return {{},
          {{"loss", {loss.value()}},
           {"entropy", in.padded(entropy)},
           {"grad_logits", in.padded(gradient, vocabulary)}}};
}

TEST(AggregateGolden, EveryCase) {
  const auto outcomes =
      check_family("aggregate", 86, [](const std::string& op, auto& in, CaseOptions& options) {
        EXPECT_EQ(op, "aggregate");
        return run_aggregate(in, options);
      });
  // With global denominators, the mean of the shards' losses is the loss of the whole batch.
  int pairs = 0;
  for (const auto& [id, outcome] : outcomes) {
    const auto shard0 = outcomes.find(id + ".shard0");
    if (shard0 == outcomes.end()) {
      continue;
    }
    ++pairs;
    const Outcome& shard1 = outcomes.at(id + ".shard1");
    const double whole = outcome.values.at("loss")[0];
    const double mean = 0.5 * (shard0->second.values.at("loss")[0] + shard1.values.at("loss")[0]);
    EXPECT_NEAR(mean, whole, 1e-14 * (1.0 + std::abs(whole))) << id;
  }
  EXPECT_EQ(pairs, 24);
}

TEST(KlGolden, EveryCase) {
  check_family("kl", 39, [](const std::string& op, auto& in, CaseOptions& options) {
    EXPECT_EQ(op, "kl");
    return run_kl(in, options);
  });
}

TEST(ValueEntropyGolden, EveryCase) {
  check_family("value_entropy", 28, [](const std::string& op, auto& in, CaseOptions& options) {
    if (op == "value_loss") {
      return run_value_loss(in, options);
    }
    EXPECT_EQ(op, "entropy_bonus");
    return run_entropy(in, options);
  });
}

}  // namespace
}  // namespace tidemill::engines::golden
