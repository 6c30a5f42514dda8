// SPDX-License-Identifier: Apache-2.0
// The records of a run.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/ids.hpp"
#include "engines/rollout_engine.hpp"
#include "storage/run_files/record_marks.hpp"

namespace tidemill::actors {

/// One trained sample, as a line of `samples.jsonl` records it. The recorder adds the text of the
/// response.
struct SampleRecord {
  SampleId id;
  GroupId group;
  std::string prompt;
  std::string reference_answer;
  double reward = 0.0;
  std::map<std::string, double> reward_parts;  // terms of a sum of rewards, before their weights
  float advantage = 0.0F;
  std::string finish_reason;
  std::vector<engines::VersionSpan> versions;
  std::vector<std::int32_t> response_ids;
  std::vector<float> behavior_logprobs;
};

/// The metrics of one step or evaluation, and the samples of a step.
struct StepRecord {
  std::string kind;  // "train" or "eval"
  std::uint64_t step = 0;
  std::map<std::string, double> metrics;  // by name, with a unit suffix
  std::vector<SampleRecord> samples;
};

using RecordMarks = storage::RecordMarks;

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, SampleRecord& x) {
  return f(x.id, x.group, x.prompt, x.reference_answer, x.reward, x.reward_parts, x.advantage,
           x.finish_reason, x.versions, x.response_ids, x.behavior_logprobs);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, StepRecord& x) {
  return f(x.kind, x.step, x.metrics, x.samples);
}

}  // namespace tidemill::actors
