// SPDX-License-Identifier: Apache-2.0
// From leased rows to a training job: pure functions, private to the trainer.
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

/// One leased row, read.
struct TrainRow {
  storage::LeaseToken lease;
  GroupId group;
  std::vector<std::int32_t> prompt_ids;
  std::vector<std::int32_t> response_ids;
  std::vector<float> behavior_logprobs;
  std::vector<engines::VersionSpan> versions;
  bool truncated = false;
  double reward = 0.0;
  std::vector<double> reward_parts;  // of a sum of rewards, before their weights
  float advantage = 0.0F;
  std::string prompt;
  std::string answer;
  std::uint64_t oldest_step = 0;

  /// Whether one version produced all its tokens.
  [[nodiscard]] bool of_one_version() const noexcept { return versions.size() == 1; }
};

/// Reads the columns of a row leased for training.
/// Errors: `kInternal` for columns that are missing or whose lengths disagree, naming the row.
[[nodiscard]] Result<TrainRow> read_train_row(const storage::LeasedRow& leased);

/// Makes the job of one batch, whose weights before it have the version `now`. `behind` holds the
/// snapshots that may have sampled the rows, oldest first.
[[nodiscard]] TrainJob make_train_job(const std::vector<TrainRow>& rows,
                                      const TrainerOptions& options, const PolicyVersion& now,
                                      const std::deque<engines::Snapshot>& behind);

/// Whether the job compares any log-probabilities of rollout and training.
[[nodiscard]] bool has_comparison(const TrainJob& job);

/// Returns a request for a short response to be compared instead, after a restart: the snapshots
/// that sampled the batch are gone then, but the one that is served is among `behind`.
[[nodiscard]] engines::RolloutRequest probe_request(const std::vector<TrainRow>& rows,
                                                    const TrainerOptions& options,
                                                    const std::deque<engines::Snapshot>& behind);

/// Makes the answer to `probe_request` the job's probe, if one of `behind` sampled it.
void add_probe(const engines::RolloutRequest& request, const engines::RolloutResult& result,
               const std::deque<engines::Snapshot>& behind, TrainJob& job);

/// Returns the figures of a trained batch, by metric name.
[[nodiscard]] std::map<std::string, double> batch_figures(const std::vector<TrainRow>& rows,
                                                          const TrainOutcome& outcome,
                                                          std::uint64_t step);

/// Adds the means of the parts of a sum of rewards, called `names`.
void add_part_figures(const std::vector<TrainRow>& rows, const std::vector<std::string>& names,
                      std::map<std::string, double>& figures);

/// Adds a stream's row counts, and how long rollout and reward had nothing to do since
/// `idle_before` was its `idle_seconds`.
void add_stream_figures(const StreamStatus& status, const std::vector<double>& idle_before,
                        std::map<std::string, double>& figures);

/// Returns what `samples.jsonl` keeps of a row; `response` is its text, `part_names` those of the
/// parts of its reward.
[[nodiscard]] SampleRecord sample_record(const TrainRow& row, std::string response,
                                         const std::vector<std::string>& part_names);

}  // namespace tidemill::actors
