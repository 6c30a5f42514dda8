// SPDX-License-Identifier: Apache-2.0
#include "engines/rl/proximal.hpp"

namespace tidemill::engines {

template <class Real>
Status proximal_log_linear(const LogLinearInputs<Real>& inputs, const LogLinearOutputs<Real>& out) {
  const TokenRows& rows = inputs.rows;
  const std::size_t size = rows.num_positions();
  TIDEMILL_RETURN_IF_ERROR(check_token_rows(rows));
  TIDEMILL_RETURN_IF_ERROR(check_token_column(rows, "logprobs", inputs.logprobs));
  TIDEMILL_RETURN_IF_ERROR(check_token_column(rows, "behavior_logprobs", inputs.behavior_logprobs));
  TIDEMILL_RETURN_IF_ERROR(
      check_output_size("behavior_versions", inputs.behavior_versions.size(), size));
  TIDEMILL_RETURN_IF_ERROR(check_output_size("alpha", out.alpha.size(), size));
  TIDEMILL_RETURN_IF_ERROR(
      check_output_size("proximal_logprobs", out.proximal_logprobs.size(), size));
  const auto current = static_cast<double>(inputs.current_version);
  for (std::size_t t = 0; t < size; ++t) {
    if (rows.mask[t] == 0) {
      out.alpha[t] = Real{0};
      out.proximal_logprobs[t] = Real{0};
      continue;
    }
    double alpha = 0.0;
    const std::int64_t version = inputs.behavior_versions[t];
    if (version >= 0 && version < inputs.current_version) {
      const double age = current - static_cast<double>(version);
      alpha = (age - 1.0) / age;  // in [0, 1), since age is at least 1
    }
    const double behavior = inputs.behavior_logprobs[t];
    out.alpha[t] = static_cast<Real>(alpha);
    out.proximal_logprobs[t] =
        static_cast<Real>(behavior + alpha * (inputs.logprobs[t] - behavior));
  }
  return check_token_result<Real>(rows, "proximal_logprobs", out.proximal_logprobs);
}

template Status proximal_log_linear(const LogLinearInputs<float>&, const LogLinearOutputs<float>&);
template Status proximal_log_linear(const LogLinearInputs<double>&,
                                    const LogLinearOutputs<double>&);

}  // namespace tidemill::engines
