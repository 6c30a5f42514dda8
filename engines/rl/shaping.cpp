// SPDX-License-Identifier: Apache-2.0
#include "engines/rl/shaping.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "engines/rl/groups.hpp"
#include "engines/rl/moments.hpp"
#include "engines/rl/refusal.hpp"
#include "engines/rl/token_rows.hpp"

namespace tidemill::engines {

Status validate(const OverlongOptions& options) {
  if (options.buffer < 1 || options.buffer > options.max_response) {
    return refuse(kBadOption, "buffer must be in 1..max_response");
  }
  if (!std::isfinite(options.factor) || options.factor < 0.0) {
    return refuse(kBadOption, "factor must be finite and at least 0");
  }
  return {};
}

template <class Real>
Status shape_overlong(const OverlongInputs<Real>& inputs, const OverlongOptions& options,
                      const OverlongOutputs<Real>& out) {
  const std::size_t count = inputs.rewards.size();
  TIDEMILL_RETURN_IF_ERROR(validate(options));
  TIDEMILL_RETURN_IF_ERROR(check_values("rewards", inputs.rewards, count, inputs.ids));
  TIDEMILL_RETURN_IF_ERROR(check_output_size("lengths", inputs.lengths.size(), count));
  TIDEMILL_RETURN_IF_ERROR(check_output_size("penalty", out.penalty.size(), count));
  TIDEMILL_RETURN_IF_ERROR(check_output_size("shaped rewards", out.rewards.size(), count));
  for (std::size_t i = 0; i < count; ++i) {
    if (inputs.lengths[i] < 0) {
      return refuse(kBadLength, "lengths[" + std::to_string(i) + "] is negative");
    }
    std::int64_t excess = inputs.lengths[i] - (options.max_response - options.buffer);
    if (options.cap) {
      excess = std::min(excess, options.buffer);
    }
    const double share = static_cast<double>(excess) / static_cast<double>(options.buffer);
    const double penalty = std::min(-share * options.factor, 0.0);
    out.penalty[i] = static_cast<Real>(penalty);
    out.rewards[i] = static_cast<Real>(inputs.rewards[i] + penalty);
  }
  TIDEMILL_RETURN_IF_ERROR(check_result<Real>("penalty", out.penalty));
  return check_result<Real>("shaped rewards", out.rewards);
}

template <class Real>
Result<GroupFilterResult> filter_groups(const GroupFilterInputs<Real>& inputs,
                                        const GroupFilterOptions& options) {
  const std::size_t count = inputs.metric.size();
  TIDEMILL_RETURN_IF_ERROR(check_values("metric", inputs.metric, count, inputs.ids));
  TIDEMILL_RETURN_IF_ERROR(check_output_size("groups", inputs.groups.size(), count));
  const bool by_range = options.rule == GroupFilterRule::kMeanInOpenRange;
  if (by_range && !(options.low < options.high)) {
    return refuse(kBadOption, "low must be below high");
  }
  const GroupIndex groups(inputs.groups);
  GroupFilterResult result;
  result.keep.assign(count, 0);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    std::vector<double> values;
    for (const std::size_t i : groups.members(g)) {
      values.push_back(inputs.metric[i]);
    }
    const Moments moments = moments_of(values, 0);
    bool keep = !moments.constant;
    if (by_range) {
      keep = options.low < moments.mean && moments.mean < options.high;
    } else if (values.size() == 1) {
      keep = options.keep_singletons;
    }
    if (keep) {
      result.kept_groups.push_back(groups.id(g));
      for (const std::size_t i : groups.members(g)) {
        result.keep[i] = 1;
      }
    }
  }
  return result;
}

template Status shape_overlong(const OverlongInputs<float>&, const OverlongOptions&,
                               const OverlongOutputs<float>&);
template Status shape_overlong(const OverlongInputs<double>&, const OverlongOptions&,
                               const OverlongOutputs<double>&);
template Result<GroupFilterResult> filter_groups(const GroupFilterInputs<float>&,
                                                 const GroupFilterOptions&);
template Result<GroupFilterResult> filter_groups(const GroupFilterInputs<double>&,
                                                 const GroupFilterOptions&);

}  // namespace tidemill::engines
