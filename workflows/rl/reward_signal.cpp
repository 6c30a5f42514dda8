// SPDX-License-Identifier: Apache-2.0
#include "workflows/rl/reward_signal.hpp"

#include <cmath>
#include <memory>
#include <utility>

#include "base/schema/types.hpp"

namespace tidemill::workflows {
namespace {

double metric_of(const actors::StepRecord& record, const char* name) {
  const auto found = record.metrics.find(name);
  return found == record.metrics.end() ? 0.0 : found->second;
}

std::string no_signal_text(const actors::StepRecord& record) {
  const auto cut = std::lround(100.0 * metric_of(record, "truncated_share"));
  return "no signal for " + std::to_string(kStepsWithoutSignal) +
         " steps: in every group all samples had the same reward (mean " +
         schema::number_text(metric_of(record, "reward_mean")) +
         "), so the rewards teach nothing. Likely causes: the reward gives every response the same "
         "number; rollout.max_new_tokens is too small (" +
         std::to_string(cut) +
         "% of the responses were cut off); rollout.temperature is too low; the prompts are too "
         "hard or too easy for the model. `tidemill show RUN --samples` shows responses";
}

}  // namespace

actors::RecordObserver warn_without_signal(actors::RecordObserver next,
                                           std::function<void(const std::string&)> log) {
  return [next = std::move(next), log = std::move(log),
          steps = std::make_shared<std::uint32_t>(0)](const actors::StepRecord& record) {
    if (record.kind == "train" && *steps < kStepsWithoutSignal) {
      const double groups = metric_of(record, "groups");
      const bool equal = groups > 0 && metric_of(record, "groups_without_signal") == groups;
      *steps = equal ? *steps + 1 : 0;
      if (*steps == kStepsWithoutSignal) {
        log(no_signal_text(record));
      }
    }
    if (next) {
      next(record);
    }
  };
}

}  // namespace tidemill::workflows
