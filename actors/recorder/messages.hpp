// SPDX-License-Identifier: Apache-2.0
// The records of a run.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/ids.hpp"
#include "engines/rollout_engine.hpp"

namespace tidemill::actors {

/// One trained sample, as a line of `samples.jsonl` records it.
struct SampleRecord {
  SampleId id;
  GroupId group;
  std::string prompt;
  std::string response;
  std::string reference_answer;
  double reward = 0.0;
  std::map<std::string, double> reward_parts;  // terms of a sum of rewards, before their weights
  float advantage = 0.0F;
  std::string finish_reason;
  std::vector<engines::VersionSpan> versions;
  std::vector<std::int32_t> response_ids;
  std::vector<float> behavior_logprobs;
};

/// The metrics of one step, and its samples.
struct StepRecord {
  std::string kind;  // "train" or "eval"
  std::uint64_t step = 0;
  std::map<std::string, double> metrics;  // by name, with a unit suffix
  std::vector<SampleRecord> samples;
};

/// The sizes of the record files at a commit. A resumed run truncates the files to them.
struct RecordMarks {
  std::uint64_t metrics_bytes = 0;
  std::uint64_t samples_bytes = 0;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, SampleRecord& x) {
  return f(x.id, x.group, x.prompt, x.response, x.reference_answer, x.reward, x.reward_parts,
           x.advantage, x.finish_reason, x.versions, x.response_ids, x.behavior_logprobs);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, StepRecord& x) {
  return f(x.kind, x.step, x.metrics, x.samples);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, RecordMarks& x) {
  return f(x.metrics_bytes, x.samples_bytes);
}

}  // namespace tidemill::actors
