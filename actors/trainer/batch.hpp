// SPDX-License-Identifier: Apache-2.0
// Makes a training job from leased rows, with pure functions. Private to the trainer.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "actors/device/messages.hpp"
#include "actors/recorder/messages.hpp"
#include "actors/stream/messages.hpp"
#include "actors/trainer/spawn.hpp"
#include "base/result.hpp"
#include "storage/records/lease.hpp"

namespace tidemill::actors {

/// One leased row with its columns decoded.
struct TrainRow {
  storage::Lease lease;
  GroupId group;
  std::vector<std::int32_t> prompt_ids;
  std::vector<std::int32_t> response_ids;
  std::vector<float> behavior_logprobs;
  std::vector<engines::VersionSpan> versions;
  bool truncated = false;
  double reward = 0.0;
  std::vector<double> reward_parts;  // of a sum of rewards, before weighting
  float advantage = 0.0F;
  // One value for each response token, or empty if the row has no such column.
  std::vector<std::uint8_t> response_mask;
  std::vector<float> token_advantages;
  std::vector<float> reference_logprobs;
  std::string prompt;
  std::string reference_answer;
  std::uint64_t oldest_step = 0;  // smallest step in `versions`

  /// Returns whether one version generated all the tokens.
  [[nodiscard]] bool of_one_version() const noexcept { return versions.size() == 1; }
};

/// Reads the columns of a row leased for training.
/// Errors: `kInternal` naming the row, if columns are missing or their lengths disagree.
[[nodiscard]] Result<TrainRow> read_train_row(const storage::LeasedRow& leased);

/// Makes the job of one batch. Token advantages replace the advantage of a row, and its mask
/// excludes response tokens from training. `now` is the version of the weights before the batch.
/// `recent` holds the snapshots that may have sampled the rows, oldest first.
[[nodiscard]] TrainRequest make_train_request(const std::vector<TrainRow>& rows,
                                              const TrainerOptions& options,
                                              const PolicyVersion& now,
                                              const std::deque<engines::Snapshot>& recent);

/// Returns whether the job compares any log-probabilities of rollout and training.
[[nodiscard]] bool has_comparison(const TrainRequest& job);

/// Returns a request for a short response, the probe. If a job has nothing to compare, the trainer
/// compares the log-probabilities of the probe instead. This happens after a restart: the snapshots
/// that sampled the batch are gone, but the snapshot that the device serves is in `recent`.
[[nodiscard]] engines::RolloutRequest probe_request(const std::vector<TrainRow>& rows,
                                                    const TrainerOptions& options,
                                                    const std::deque<engines::Snapshot>& recent);

/// Makes the response to `probe_request` the job's probe, if a snapshot in `recent` sampled it.
void add_probe(const engines::RolloutRequest& request, const engines::RolloutResult& result,
               const std::deque<engines::Snapshot>& recent, TrainRequest& job);

/// Returns the metrics of a trained batch, by name.
[[nodiscard]] std::map<std::string, double> batch_metrics(const std::vector<TrainRow>& rows,
                                                          const TrainOutcome& outcome,
                                                          std::uint64_t step);

/// Adds the means of the parts of a sum of rewards. `names` are the names of the parts.
void add_part_metrics(const std::vector<TrainRow>& rows, const std::vector<std::string>& names,
                      std::map<std::string, double>& metrics);

/// Adds a stream's row counts, and for how long rollout and reward were idle since an earlier
/// status, whose `idle_seconds` are `idle_before`.
void add_stream_metrics(const StreamStatus& status, const std::vector<double>& idle_before,
                        std::map<std::string, double>& metrics);

/// Returns the record of a row for `samples.jsonl`. `part_names` are the names of the parts of its
/// reward.
[[nodiscard]] SampleRecord sample_record(const TrainRow& row,
                                         const std::vector<std::string>& part_names);

}  // namespace tidemill::actors
