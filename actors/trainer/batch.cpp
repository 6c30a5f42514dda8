// SPDX-License-Identifier: Apache-2.0
#include "actors/trainer/batch.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "actors/stream/sample_columns.hpp"

namespace tidemill::actors {
namespace {

using engines::TrainSequence;

constexpr std::size_t kProbeSequences = 2;
constexpr std::int32_t kProbeTokens = 8;                     // at most
constexpr std::uint64_t kProbeId = std::uint64_t{1} << 61U;  // outside the stream's range of ids

TrainSequence make_sequence(const TrainRow& row, bool mask_truncated) {
  const std::size_t prompt = row.prompt_ids.size();
  const std::size_t total = prompt + row.response_ids.size();
  TrainSequence sequence;
  sequence.id = row.lease.row;
  sequence.ids = row.prompt_ids;
  sequence.ids.insert(sequence.ids.end(), row.response_ids.begin(), row.response_ids.end());
  sequence.response_mask.assign(total, 0);
  sequence.advantages.assign(total, 0.0F);
  sequence.behavior_logprobs.assign(total, 0.0F);
  if (!row.reference_logprobs.empty()) {
    sequence.reference_logprobs.assign(total, 0.0F);
  }
  const bool trained = !(mask_truncated && row.truncated);
  for (std::size_t t = prompt; t < total; ++t) {
    const std::size_t r = t - prompt;
    const bool target = row.response_mask.empty() || row.response_mask[r] != 0;
    sequence.response_mask[t] = trained && target ? 1 : 0;
    sequence.advantages[t] = row.token_advantages.empty() ? row.advantage : row.token_advantages[r];
    sequence.behavior_logprobs[t] = row.behavior_logprobs[r];
    if (!row.reference_logprobs.empty()) {
      sequence.reference_logprobs[t] = row.reference_logprobs[r];
    }
  }
  sequence.versions = row.versions;
  return sequence;
}

// Adds to the job's probe rows whose behavior log-probabilities the training job can compute
// again: rows that were sampled by one snapshot, which is still in `recent`.
void choose_probe(const std::vector<TrainRow>& rows, const std::deque<engines::Snapshot>& recent,
                  TrainRequest& job) {
  for (const TrainRow& row : rows) {
    if (!row.of_one_version() || job.probe.size() == kProbeSequences) {
      continue;
    }
    const PolicyVersion& version = row.versions.front().version;
    if (job.probe.empty()) {
      const auto sampled_by = std::find_if(
          recent.begin(), recent.end(),
          [&](const engines::Snapshot& snapshot) { return snapshot.version.step == version.step; });
      if (sampled_by == recent.end()) {
        continue;
      }
      job.probe_weights = *sampled_by;
    } else if (job.probe_weights.version.step != version.step) {
      continue;
    }
    job.probe.push_back(make_sequence(row, /*mask_truncated=*/false));
  }
}

}  // namespace

Result<TrainRow> read_train_row(const storage::LeasedRow& leased) {
  TrainRow row;
  row.lease = leased.lease;
  row.group = leased.row.group;
  TIDEMILL_ASSIGN_OR_RETURN(row.prompt_ids,
                            read_cell<std::int32_t>(leased, SampleColumn::kPromptIds));
  TIDEMILL_ASSIGN_OR_RETURN(row.response_ids,
                            read_cell<std::int32_t>(leased, SampleColumn::kResponseIds));
  TIDEMILL_ASSIGN_OR_RETURN(row.behavior_logprobs,
                            read_cell<float>(leased, SampleColumn::kBehaviorLogprobs));
  TIDEMILL_ASSIGN_OR_RETURN(const Buffer versions, find_cell(leased, SampleColumn::kVersions));
  TIDEMILL_ASSIGN_OR_RETURN(const auto finish,
                            read_cell<std::uint8_t>(leased, SampleColumn::kFinish));
  TIDEMILL_ASSIGN_OR_RETURN(const auto reward, read_cell<double>(leased, SampleColumn::kReward));
  TIDEMILL_ASSIGN_OR_RETURN(const auto advantage,
                            read_cell<float>(leased, SampleColumn::kAdvantage));
  TIDEMILL_ASSIGN_OR_RETURN(const Buffer prompt, find_cell(leased, SampleColumn::kPrompt));
  TIDEMILL_ASSIGN_OR_RETURN(const Buffer answer, find_cell(leased, SampleColumn::kReferenceAnswer));
  row.versions = cell_versions(versions);
  row.response_mask = read_optional_cell<std::uint8_t>(leased, SampleColumn::kResponseMask);
  row.token_advantages = read_optional_cell<float>(leased, SampleColumn::kTokenAdvantages);
  row.reference_logprobs = read_optional_cell<float>(leased, SampleColumn::kReferenceLogprobs);
  const auto fits = [&](std::size_t size) { return size == 0 || size == row.response_ids.size(); };
  if (!fits(row.response_mask.size()) || !fits(row.token_advantages.size()) ||
      !fits(row.reference_logprobs.size()) ||
      row.behavior_logprobs.size() != row.response_ids.size() || row.versions.empty() ||
      finish.size() != 1 || reward.empty() || advantage.size() != 1) {
    return Status(Errc::kInternal,
                  "columns of different lengths row=" + std::to_string(leased.row.id.value));
  }
  row.truncated = finish[0] == static_cast<std::uint8_t>(engines::FinishReason::kLength);
  row.reward = reward[0];
  row.reward_parts.assign(reward.begin() + 1, reward.end());
  row.advantage = advantage[0];
  row.prompt = cell_text(prompt);
  row.reference_answer = cell_text(answer);
  row.oldest_step = row.versions.front().version.step;
  for (const engines::VersionSpan& span : row.versions) {
    row.oldest_step = std::min(row.oldest_step, span.version.step);
  }
  return row;
}

TrainRequest make_train_request(const std::vector<TrainRow>& rows, const TrainerOptions& options,
                                const PolicyVersion& now,
                                const std::deque<engines::Snapshot>& recent) {
  TrainRequest job;
  job.epochs = options.epochs;
  job.temperature = options.temperature;
  job.recompute_proximal = options.recompute_proximal;
  job.publish_as = {now.line, now.incarnation, now.step + 1};
  job.minibatches.resize(options.minibatches);
  std::map<GroupId, std::size_t> minibatch_of;  // groups are distributed in admission order
  for (const TrainRow& row : rows) {
    minibatch_of.try_emplace(row.group, 0);
  }
  std::size_t next = 0;
  for (auto& [group, minibatch] : minibatch_of) {
    minibatch = next * options.minibatches / minibatch_of.size();
    ++next;
  }
  for (const TrainRow& row : rows) {
    TrainMinibatch& minibatch = job.minibatches[minibatch_of[row.group]];
    minibatch.sequences.push_back(make_sequence(row, options.mask_truncated));
    if (row.of_one_version() && row.oldest_step == now.step) {
      minibatch.on_policy.push_back(row.lease.row);
    }
  }
  if (job.minibatches.front().on_policy.empty()) {
    choose_probe(rows, recent, job);
  }
  return job;
}

bool has_comparison(const TrainRequest& job) {
  return !job.probe.empty() || !job.minibatches.front().on_policy.empty();
}

engines::RolloutRequest probe_request(const std::vector<TrainRow>& rows,
                                      const TrainerOptions& options,
                                      const std::deque<engines::Snapshot>& recent) {
  engines::RolloutRequest request;
  request.id = {kProbeId};
  request.prompt_ids = rows.front().prompt_ids;
  request.sampling.temperature = options.temperature;
  request.max_new_tokens = std::min(kProbeTokens, options.max_new_tokens);
  request.min_step = recent.front().version.step;
  return request;
}

void add_probe(const engines::RolloutRequest& request, const engines::RolloutResult& result,
               const std::deque<engines::Snapshot>& recent, TrainRequest& job) {
  TrainRow row;
  row.lease.row = request.id;
  row.prompt_ids = request.prompt_ids;
  row.response_ids = result.response_ids;
  row.behavior_logprobs = result.behavior_logprobs;
  row.versions = result.versions;
  choose_probe({row}, recent, job);
}

std::map<std::string, double> batch_metrics(const std::vector<TrainRow>& rows,
                                            const TrainOutcome& outcome, std::uint64_t step) {
  std::map<std::string, double> metrics;
  const auto count = std::max(static_cast<double>(rows.size()), 1.0);
  std::map<GroupId, std::pair<double, double>> range;  // smallest and largest reward
  double rewards = 0.0;
  double squares = 0.0;
  double tokens = 0.0;
  double truncated = 0.0;
  double staleness = 0.0;
  double oldest = 0.0;
  for (const TrainRow& row : rows) {
    rewards += row.reward;
    squares += row.reward * row.reward;
    tokens += static_cast<double>(row.response_ids.size());
    truncated += row.truncated ? 1.0 : 0.0;
    const double age = static_cast<double>(step) - static_cast<double>(row.oldest_step);
    staleness += age;
    oldest = std::max(oldest, age);
    auto [it, fresh] = range.try_emplace(row.group, row.reward, row.reward);
    it->second.first = std::min(it->second.first, row.reward);
    it->second.second = std::max(it->second.second, row.reward);
  }
  const double mean = rewards / count;
  const auto flat = std::count_if(range.begin(), range.end(), [](const auto& entry) {
    return entry.second.first == entry.second.second;
  });
  metrics["reward_mean"] = mean;
  metrics["reward_std"] = std::sqrt(std::max(squares / count - mean * mean, 0.0));
  metrics["response_tokens_mean"] = tokens / count;
  metrics["response_tokens"] = tokens;
  metrics["truncated_share"] = truncated / count;
  metrics["staleness_mean"] = staleness / count;
  metrics["staleness_max"] = oldest;
  metrics["groups"] = static_cast<double>(range.size());
  metrics["groups_without_signal"] = static_cast<double>(flat);
  metrics["rows"] = static_cast<double>(rows.size());
  metrics["logprob_gap_max"] = outcome.gap.max;
  metrics["logprob_gap_tokens"] = static_cast<double>(outcome.gap.num_tokens);
  const auto updates = std::max(static_cast<double>(outcome.updates.size()), 1.0);
  for (const engines::UpdateReport& update : outcome.updates) {
    for (const auto& [name, value] : update.sums) {
      metrics[name] += value / updates;
    }
    metrics["gradient_norm"] += update.gradient_norm / updates;
    metrics["learning_rate"] = update.learning_rate;
    metrics["recalled_tokens"] += static_cast<double>(update.recalled_tokens) / updates;
  }
  return metrics;
}

void add_part_metrics(const std::vector<TrainRow>& rows, const std::vector<std::string>& names,
                      std::map<std::string, double>& metrics) {
  for (std::size_t part = 0; part < names.size() && !rows.empty(); ++part) {
    double sum = 0.0;
    for (const TrainRow& row : rows) {
      sum += part < row.reward_parts.size() ? row.reward_parts[part] : 0.0;
    }
    metrics["reward_" + names[part] + "_mean"] = sum / static_cast<double>(rows.size());
  }
}

void add_stream_metrics(const StreamStatus& status, const std::vector<double>& idle_before,
                        std::map<std::string, double>& metrics) {
  for (const SampleTask task : {SampleTask::kRollout, SampleTask::kReward}) {
    const std::size_t index = task_id(task).value;
    if (index < status.idle_seconds.size()) {
      const double before = index < idle_before.size() ? idle_before[index] : 0.0;
      metrics[std::string(kSampleTaskNames[index]) + "_idle_seconds"] =
          status.idle_seconds[index] - before;
    }
  }
  metrics["rows_admitted"] = static_cast<double>(status.admitted);
  metrics["rows_trained"] = static_cast<double>(status.trained);
  metrics["rows_dropped"] = static_cast<double>(status.dropped);
  metrics["rows_filtered"] = static_cast<double>(status.filtered);
  metrics["rows_failed"] = static_cast<double>(status.failed);
  metrics["rows_redelivered"] = static_cast<double>(status.redelivered);
}

SampleRecord sample_record(const TrainRow& row, const std::vector<std::string>& part_names) {
  SampleRecord record;
  record.id = row.lease.row;
  record.group = row.group;
  record.prompt = row.prompt;
  record.reference_answer = row.reference_answer;
  record.reward = row.reward;
  for (std::size_t part = 0; part < std::min(part_names.size(), row.reward_parts.size()); ++part) {
    record.reward_parts[part_names[part]] = row.reward_parts[part];
  }
  record.advantage = row.advantage;
  record.finish_reason = row.truncated ? "length" : "stop";
  record.versions = row.versions;
  record.response_ids = row.response_ids;
  record.behavior_logprobs = row.behavior_logprobs;
  return record;
}

}  // namespace tidemill::actors
