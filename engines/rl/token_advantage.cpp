// SPDX-License-Identifier: Apache-2.0
#include "engines/rl/token_advantage.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "engines/rl/refusal.hpp"

namespace tidemill::engines {
namespace {

Status check_unit_interval(std::string_view name, double value) {
  if (!(value >= 0.0 && value <= 1.0)) {
    return refuse(kBadOption, std::string(name) + " must be in [0, 1]");
  }
  return {};
}

Status check_clip(std::string_view name, const std::optional<double>& clip) {
  if (clip && !(*clip >= 0.0)) {
    return refuse(kBadOption, std::string(name) + " must be at least 0");
  }
  return {};
}

Status check_coefficient(double coefficient) {
  if (!std::isfinite(coefficient)) {
    return refuse(kBadOption, "kl_coefficient must be finite");
  }
  return {};
}

double clip_to(double value, const std::optional<double>& limit) {
  return limit ? std::clamp(value, -*limit, *limit) : value;
}

template <class Real>
Status check_out(const TokenRows& rows, const ReturnsAndAdvantages<Real>& out) {
  TIDEMILL_RETURN_IF_ERROR(check_output_size("returns", out.returns.size(), rows.num_positions()));
  return check_output_size("advantages", out.advantages.size(), rows.num_positions());
}

template <class Real>
Status check_results(const TokenRows& rows, const ReturnsAndAdvantages<Real>& out) {
  TIDEMILL_RETURN_IF_ERROR(check_token_result<Real>(rows, "returns", out.returns));
  return check_token_result<Real>(rows, "advantages", out.advantages);
}

template <class Real>
Status check_optional_column(const TokenRows& rows, std::string_view name,
                             std::span<const Real> column) {
  return column.empty() ? Status() : check_token_column(rows, name, column);
}

}  // namespace

template <class Real>
Status token_rewards(const TokenRewardInputs<Real>& inputs, const TokenRewardOptions& options,
                     std::span<Real> out) {
  const TokenRows& rows = inputs.rows;
  TIDEMILL_RETURN_IF_ERROR(check_token_rows(rows));
  TIDEMILL_RETURN_IF_ERROR(check_coefficient(options.kl_coefficient));
  TIDEMILL_RETURN_IF_ERROR(check_clip("reward_clip", options.reward_clip));
  TIDEMILL_RETURN_IF_ERROR(check_row_column(rows, "rewards", inputs.rewards));
  TIDEMILL_RETURN_IF_ERROR(check_optional_column(rows, "kl", inputs.kl));
  TIDEMILL_RETURN_IF_ERROR(check_output_size("token rewards", out.size(), rows.num_positions()));
  for (std::size_t row = 0; row < rows.num_rows(); ++row) {
    double reward = clip_to(inputs.rewards[row], options.reward_clip);
    for (std::size_t t = rows.end(row); t-- > rows.begin(row);) {
      if (rows.mask[t] == 0) {
        out[t] = Real{0};
        continue;
      }
      const double kl = inputs.kl.empty() ? 0.0 : static_cast<double>(inputs.kl[t]);
      out[t] = static_cast<Real>(reward - options.kl_coefficient * kl);
      reward = 0.0;  // only the last valid token, which this loop visits first, gets the reward
    }
  }
  return check_token_result<Real>(rows, "token rewards", out);
}

template <class Real>
Status reinforce_advantages(const ReinforceInputs<Real>& inputs, const ReinforceOptions& options,
                            const ReturnsAndAdvantages<Real>& out) {
  const TokenRows& rows = inputs.rows;
  TIDEMILL_RETURN_IF_ERROR(check_token_rows(rows));
  TIDEMILL_RETURN_IF_ERROR(check_unit_interval("gamma", options.gamma));
  TIDEMILL_RETURN_IF_ERROR(validate(options.whitening));
  TIDEMILL_RETURN_IF_ERROR(check_token_column(rows, "token_rewards", inputs.token_rewards));
  TIDEMILL_RETURN_IF_ERROR(check_out(rows, out));
  for (std::size_t row = 0; row < rows.num_rows(); ++row) {
    double sum = 0.0;
    for (std::size_t t = rows.end(row); t-- > rows.begin(row);) {
      if (rows.mask[t] != 0) {
        sum = inputs.token_rewards[t] + options.gamma * sum;
        out.returns[t] = static_cast<Real>(sum);
      } else {
        sum *= options.masked == MaskedSteps::kZeroStep ? options.gamma : 1.0;
        out.returns[t] = Real{0};
      }
    }
  }
  TIDEMILL_RETURN_IF_ERROR(check_token_result<Real>(rows, "returns", out.returns));
  std::copy(out.returns.begin(), out.returns.end(), out.advantages.begin());
  if (options.whiten) {
    whiten(rows, options.whitening, out.advantages);
  }
  return check_token_result<Real>(rows, "advantages", out.advantages);
}

template <class Real>
Status group_baseline_advantages(const GroupBaselineInputs<Real>& inputs,
                                 const GroupBaselineOptions& options,
                                 const CenteredAndAdvantages<Real>& out) {
  const TokenRows& rows = inputs.rows;
  TIDEMILL_RETURN_IF_ERROR(check_token_rows(rows));
  TIDEMILL_RETURN_IF_ERROR(validate(options.whitening));
  TIDEMILL_RETURN_IF_ERROR(check_row_column(rows, "rewards", inputs.rewards));
  TIDEMILL_RETURN_IF_ERROR(
      check_output_size("advantages", out.advantages.size(), rows.num_positions()));
  GrpoAdvantageOptions centering;
  centering.scale = AdvantageScale::kNone;
  centering.singleton = options.singleton;
  TIDEMILL_RETURN_IF_ERROR(
      grpo_advantages<Real>({inputs.rewards, inputs.groups, rows.ids}, centering, out.centered));
  broadcast_rows<Real>(rows, out.centered, out.advantages);
  if (options.whiten) {
    whiten(rows, options.whitening, out.advantages);
  }
  return check_token_result<Real>(rows, "advantages", out.advantages);
}

template <class Real>
Status remax_reward_to_go(const RemaxRewardToGoInputs<Real>& inputs,
                          const ReturnsAndAdvantages<Real>& out) {
  const TokenRows& rows = inputs.rows;
  TIDEMILL_RETURN_IF_ERROR(check_token_rows(rows));
  TIDEMILL_RETURN_IF_ERROR(check_token_column(rows, "token_rewards", inputs.token_rewards));
  TIDEMILL_RETURN_IF_ERROR(check_row_column(rows, "baseline", inputs.baseline));
  TIDEMILL_RETURN_IF_ERROR(check_out(rows, out));
  for (std::size_t row = 0; row < rows.num_rows(); ++row) {
    double sum = 0.0;
    for (std::size_t t = rows.end(row); t-- > rows.begin(row);) {
      const bool valid = rows.mask[t] != 0;
      sum += valid ? inputs.token_rewards[t] : 0.0;
      out.returns[t] = valid ? static_cast<Real>(sum) : Real{0};
      out.advantages[t] = valid ? static_cast<Real>(sum - inputs.baseline[row]) : Real{0};
    }
  }
  return check_results(rows, out);
}

template <class Real>
Status remax_advantages(const RemaxInputs<Real>& inputs, const RemaxOptions& options,
                        std::span<Real> advantages) {
  const TokenRows& rows = inputs.rows;
  TIDEMILL_RETURN_IF_ERROR(check_token_rows(rows));
  TIDEMILL_RETURN_IF_ERROR(check_unit_interval("gamma", options.gamma));
  TIDEMILL_RETURN_IF_ERROR(check_clip("clip", options.clip));
  TIDEMILL_RETURN_IF_ERROR(check_coefficient(options.kl_coefficient));
  TIDEMILL_RETURN_IF_ERROR(check_row_column(rows, "rewards", inputs.rewards));
  TIDEMILL_RETURN_IF_ERROR(check_row_column(rows, "baseline", inputs.baseline));
  TIDEMILL_RETURN_IF_ERROR(check_optional_column(rows, "kl", inputs.kl));
  TIDEMILL_RETURN_IF_ERROR(
      check_output_size("advantages", advantages.size(), rows.num_positions()));
  for (std::size_t row = 0; row < rows.num_rows(); ++row) {
    double discounted = clip_to(
        static_cast<double>(inputs.rewards[row]) - static_cast<double>(inputs.baseline[row]),
        options.clip);
    for (std::size_t t = rows.end(row); t-- > rows.begin(row);) {
      if (rows.mask[t] == 0) {
        advantages[t] = Real{0};
        continue;
      }
      const double kl = inputs.kl.empty() ? 0.0 : static_cast<double>(inputs.kl[t]);
      advantages[t] = static_cast<Real>(discounted - options.kl_coefficient * kl);
      discounted *= options.gamma;
    }
  }
  return check_token_result<Real>(rows, "advantages", advantages);
}

namespace {

template <class Real>
Status check_gae(const GaeInputs<Real>& inputs, const GaeOptions& options) {
  const TokenRows& rows = inputs.rows;
  TIDEMILL_RETURN_IF_ERROR(check_token_rows(rows));
  TIDEMILL_RETURN_IF_ERROR(check_unit_interval("gamma", options.gamma));
  TIDEMILL_RETURN_IF_ERROR(check_unit_interval("lambda", options.lambda));
  TIDEMILL_RETURN_IF_ERROR(validate(options.whitening));
  TIDEMILL_RETURN_IF_ERROR(check_token_column(rows, "token_rewards", inputs.token_rewards));
  TIDEMILL_RETURN_IF_ERROR(check_token_column(rows, "values", inputs.values));
  if (inputs.truncated.empty()) {
    return {};
  }
  TIDEMILL_RETURN_IF_ERROR(
      check_output_size("truncated", inputs.truncated.size(), rows.num_rows()));
  for (std::size_t row = 0; row < rows.num_rows(); ++row) {
    const std::string location = "row " + std::to_string(row);
    if (inputs.truncated[row] > 1) {
      return refuse(kBadMask, "truncated of " + location + " is neither 0 nor 1");
    }
    if (inputs.truncated[row] == 0) {
      continue;
    }
    if (options.masked == MaskedSteps::kZeroStep) {
      return refuse(kBadOption,
                    "masked steps of reward 0 cannot be combined with truncated " + location);
    }
    if (inputs.bootstrap.size() != rows.num_rows()) {
      return refuse(kBadShape, "truncated " + location + " needs a bootstrap value");
    }
    if (!std::isfinite(inputs.bootstrap[row])) {
      return refuse(kNonFinite, "bootstrap of " + location + " is not finite");
    }
  }
  return {};
}

}  // namespace

template <class Real>
Status gae(const GaeInputs<Real>& inputs, const GaeOptions& options,
           const ReturnsAndAdvantages<Real>& out) {
  const TokenRows& rows = inputs.rows;
  TIDEMILL_RETURN_IF_ERROR(check_gae(inputs, options));
  TIDEMILL_RETURN_IF_ERROR(check_out(rows, out));
  const double decay = options.gamma * options.lambda;
  for (std::size_t row = 0; row < rows.num_rows(); ++row) {
    const bool truncated = !inputs.truncated.empty() && inputs.truncated[row] != 0;
    double next_value = truncated ? static_cast<double>(inputs.bootstrap[row]) : 0.0;
    double advantage = 0.0;
    for (std::size_t t = rows.end(row); t-- > rows.begin(row);) {
      const bool valid = rows.mask[t] != 0;
      if (valid || options.masked == MaskedSteps::kZeroStep) {
        const double reward = valid ? static_cast<double>(inputs.token_rewards[t]) : 0.0;
        const double value = valid ? static_cast<double>(inputs.values[t]) : 0.0;
        advantage = reward + options.gamma * next_value - value + decay * advantage;
        next_value = value;
      }
      out.advantages[t] = valid ? static_cast<Real>(advantage) : Real{0};
      out.returns[t] = valid ? static_cast<Real>(advantage + next_value) : Real{0};
    }
  }
  TIDEMILL_RETURN_IF_ERROR(check_results(rows, out));
  if (options.whiten) {
    whiten(rows, options.whitening, out.advantages);
  }
  return check_token_result<Real>(rows, "advantages", out.advantages);
}

#define TIDEMILL_INSTANTIATE(Real)                                                            \
  template Status token_rewards(const TokenRewardInputs<Real>&, const TokenRewardOptions&,    \
                                std::span<Real>);                                             \
  template Status reinforce_advantages(const ReinforceInputs<Real>&, const ReinforceOptions&, \
                                       const ReturnsAndAdvantages<Real>&);                    \
  template Status group_baseline_advantages(const GroupBaselineInputs<Real>&,                 \
                                            const GroupBaselineOptions&,                      \
                                            const CenteredAndAdvantages<Real>&);              \
  template Status remax_reward_to_go(const RemaxRewardToGoInputs<Real>&,                      \
                                     const ReturnsAndAdvantages<Real>&);                      \
  template Status remax_advantages(const RemaxInputs<Real>&, const RemaxOptions&,             \
                                   std::span<Real>);                                          \
  template Status gae(const GaeInputs<Real>&, const GaeOptions&, const ReturnsAndAdvantages<Real>&);
TIDEMILL_INSTANTIATE(float)
TIDEMILL_INSTANTIATE(double)
#undef TIDEMILL_INSTANTIATE

}  // namespace tidemill::engines
