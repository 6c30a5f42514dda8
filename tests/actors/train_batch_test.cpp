// SPDX-License-Identifier: Apache-2.0
// Tests the functions of actors/trainer/batch.hpp.
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/trainer/batch.hpp"
#include "tests/actors/sample_rows.hpp"

namespace tidemill::test {
namespace {

using actors::TrainRequest;
using actors::TrainRow;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TrainRow row_of(std::uint64_t id, std::uint64_t group, std::uint64_t step = 0) {
  auto row = actors::read_train_row(trainable_row(id, group, step));
  EXPECT_TRUE(row.ok()) << row.status().to_string();
  return row.value();
}

std::deque<engines::Snapshot> snapshots(std::initializer_list<std::uint64_t> steps) {
  std::deque<engines::Snapshot> recent;
  for (const std::uint64_t step : steps) {
    recent.emplace_back();
    recent.back().version.step = step;
  }
  return recent;
}

// -- reading --------------------------------------------------------------------------------------

TEST(TrainBatch, ReadsEveryColumnOfARow) {
  storage::LeasedRow leased = trainable_row(3, 1, 5, 0.25);
  leased.columns.back() =
      actors::make_cell(actors::SampleColumn::kAdvantage, std::vector<float>{-0.5F});
  const auto row = actors::read_train_row(leased);
  ASSERT_TRUE(row.ok());
  EXPECT_EQ(row.value().lease.row, SampleId{3});
  EXPECT_EQ(row.value().group, GroupId{1});
  EXPECT_THAT(row.value().prompt_ids, ElementsAre(1, 2, 3));
  EXPECT_THAT(row.value().response_ids, ElementsAre(7, 8));
  EXPECT_THAT(row.value().behavior_logprobs, ElementsAre(-0.5F, -0.25F));
  EXPECT_EQ(row.value().oldest_step, 5U);
  EXPECT_EQ(row.value().reward, 0.25);
  EXPECT_EQ(row.value().advantage, -0.5F);
  EXPECT_EQ(row.value().prompt, "prompt 1");
  EXPECT_EQ(row.value().reference_answer, "answer");
  EXPECT_FALSE(row.value().truncated);
  EXPECT_TRUE(row.value().of_one_version());
}

TEST(TrainBatch, TheOldestOfSeveralVersionsCounts) {
  storage::LeasedRow leased = trainable_row(3, 1);
  for (storage::ColumnValue& cell : leased.columns) {
    if (cell.column.value == static_cast<std::uint32_t>(actors::SampleColumn::kVersions)) {
      const std::vector<engines::VersionSpan> spans{{{0, 0, 6}, 1}, {{0, 0, 4}, 1}};
      cell = actors::make_versions_cell(spans);
    }
  }
  const auto row = actors::read_train_row(leased);
  ASSERT_TRUE(row.ok());
  EXPECT_EQ(row.value().oldest_step, 4U);
  EXPECT_FALSE(row.value().of_one_version());
}

TEST(TrainBatch, AMissingColumnOrUnequalLengthsAreAnErrorThatNamesTheRow) {
  const storage::LeasedRow whole = trainable_row(3, 1);
  std::size_t checked = 0;
  for (std::size_t i = 0; i < whole.columns.size(); ++i) {
    const auto column = static_cast<actors::SampleColumn>(whole.columns[i].column.value);
    if (column == actors::SampleColumn::kFields) {
      continue;  // training does not read it
    }
    storage::LeasedRow incomplete = whole;
    incomplete.columns.erase(incomplete.columns.begin() + static_cast<std::ptrdiff_t>(i));
    const auto row = actors::read_train_row(incomplete);
    EXPECT_EQ(row.status().code(), Errc::kInternal);
    EXPECT_THAT(row.status().message(), HasSubstr("row=3"));
    ++checked;
  }
  EXPECT_EQ(checked, 9U);
  storage::LeasedRow shorter = whole;
  for (storage::ColumnValue& cell : shorter.columns) {
    if (cell.column.value == static_cast<std::uint32_t>(actors::SampleColumn::kBehaviorLogprobs)) {
      cell = actors::make_cell(actors::SampleColumn::kBehaviorLogprobs, std::vector<float>{-1.0F});
    }
  }
  EXPECT_EQ(actors::read_train_row(shorter).status().message(),
            "columns of different lengths row=3");
}

// -- jobs -----------------------------------------------------------------------------------------

TEST(TrainBatch, ASequenceIsPromptThenResponseWithItsAdvantage) {
  const TrainRequest job =
      actors::make_train_request({row_of(3, 1)}, {}, {0, 2, 0}, snapshots({0}));
  ASSERT_EQ(job.minibatches.size(), 1U);
  const engines::TrainSequence& sequence = job.minibatches[0].sequences.at(0);
  EXPECT_EQ(sequence.id, SampleId{3});
  EXPECT_THAT(sequence.ids, ElementsAre(1, 2, 3, 7, 8));
  EXPECT_THAT(sequence.response_mask, ElementsAre(0, 0, 0, 1, 1));
  EXPECT_THAT(sequence.advantages, ElementsAre(0, 0, 0, 0.5F, 0.5F));
  EXPECT_THAT(sequence.behavior_logprobs, ElementsAre(0, 0, 0, -0.5F, -0.25F));
  EXPECT_TRUE(sequence.reference_logprobs.empty());
  EXPECT_EQ(job.publish_as, (PolicyVersion{0, 2, 1}));
  EXPECT_THAT(job.minibatches[0].on_policy, ElementsAre(SampleId{3}));
}

TEST(TrainBatch, OptionalColumnsReplaceTheirDefaults) {
  storage::LeasedRow leased = trainable_row(3, 1, 5);
  leased.columns.push_back(
      actors::make_cell(actors::SampleColumn::kResponseMask, std::vector<std::uint8_t>{0, 1}));
  leased.columns.push_back(
      actors::make_cell(actors::SampleColumn::kTokenAdvantages, std::vector<float>{0.25F, -1.0F}));
  leased.columns.push_back(actors::make_cell(actors::SampleColumn::kReferenceLogprobs,
                                             std::vector<float>{-3.0F, -4.0F}));
  const auto row = actors::read_train_row(leased);
  ASSERT_TRUE(row.ok()) << row.status().to_string();
  const TrainRequest job = actors::make_train_request({row.value()}, {}, {0, 0, 5}, snapshots({5}));
  const engines::TrainSequence& sequence = job.minibatches[0].sequences.at(0);
  EXPECT_THAT(sequence.response_mask, ElementsAre(0, 0, 0, 0, 1));
  EXPECT_THAT(sequence.advantages, ElementsAre(0, 0, 0, 0.25F, -1.0F));
  EXPECT_THAT(sequence.reference_logprobs, ElementsAre(0, 0, 0, -3.0F, -4.0F));
  EXPECT_THAT(sequence.versions, ElementsAre(engines::VersionSpan{{0, 0, 5}, 2}));
  EXPECT_TRUE(sequence.token_weights.empty());
  leased.columns.back() =
      actors::make_cell(actors::SampleColumn::kReferenceLogprobs, std::vector<float>{-3.0F});
  EXPECT_EQ(actors::read_train_row(leased).status().message(),
            "columns of different lengths row=3");
}

TEST(TrainBatch, TruncatedResponsesCarryNoLossWhenMasked) {
  TrainRow row = row_of(3, 1);
  row.truncated = true;
  actors::TrainerOptions options;
  EXPECT_EQ(actors::make_train_request({row}, options, {}, snapshots({0}))
                .minibatches[0]
                .sequences[0]
                .response_mask.back(),
            1);
  options.mask_truncated = true;
  EXPECT_EQ(actors::make_train_request({row}, options, {}, snapshots({0}))
                .minibatches[0]
                .sequences[0]
                .response_mask.back(),
            0);
}

TEST(TrainBatch, MinibatchesHaveWholeGroupsInAdmissionOrder) {
  actors::TrainerOptions options;
  options.minibatches = 2;
  std::vector<TrainRow> rows;
  for (std::uint64_t id = 0; id < 8; ++id) {
    rows.push_back(row_of(7 - id, (7 - id) / 2));
  }
  const TrainRequest job = actors::make_train_request(rows, options, {}, snapshots({0}));
  ASSERT_EQ(job.minibatches.size(), 2U);
  ASSERT_EQ(job.minibatches[0].sequences.size(), 4U);
  for (const engines::TrainSequence& sequence : job.minibatches[0].sequences) {
    EXPECT_LT(sequence.id.value, 4U);
  }
}

TEST(TrainBatch, FewerGroupsThanMinibatchesLeaveSomeEmpty) {
  actors::TrainerOptions options;
  options.minibatches = 3;
  const TrainRequest job =
      actors::make_train_request({row_of(0, 0), row_of(1, 0)}, options, {}, snapshots({0}));
  ASSERT_EQ(job.minibatches.size(), 3U);
  EXPECT_EQ(job.minibatches[0].sequences.size(), 2U);
  EXPECT_TRUE(
      actors::make_train_request({}, options, {}, snapshots({0})).minibatches[0].sequences.empty());
}

TEST(TrainBatch, RowsOfOlderWeightsAreProbedUnderThoseWeights) {
  const auto recent = snapshots({3, 4});
  const TrainRequest fresh = actors::make_train_request({row_of(0, 0, 4)}, {}, {0, 0, 4}, recent);
  EXPECT_TRUE(actors::has_comparison(fresh));
  EXPECT_TRUE(fresh.probe.empty());
  const TrainRequest older = actors::make_train_request({row_of(0, 0, 3)}, {}, {0, 0, 4}, recent);
  ASSERT_EQ(older.probe.size(), 1U);
  EXPECT_EQ(older.probe_weights.version.step, 3U);
  EXPECT_TRUE(actors::has_comparison(older));
  const TrainRequest gone = actors::make_train_request({row_of(0, 0, 2)}, {}, {0, 0, 4}, recent);
  EXPECT_FALSE(actors::has_comparison(gone));
}

TEST(TrainBatch, AGeneratedProbeAllowsAComparison) {
  const auto recent = snapshots({4});
  actors::TrainerOptions options;
  options.temperature = 0.5F;
  const std::vector<TrainRow> rows{row_of(0, 0, 2)};
  TrainRequest job = actors::make_train_request(rows, options, {0, 0, 4}, recent);
  const auto request = actors::probe_request(rows, options, recent);
  EXPECT_EQ(request.min_step, 4U);
  EXPECT_EQ(request.max_new_tokens, 8);
  EXPECT_EQ(request.sampling.temperature, 0.5F);
  EXPECT_THAT(request.prompt_ids, ElementsAre(1, 2, 3));
  const engines::RolloutResult result{
      request.id, {9}, {-1.0F}, {{{0, 0, 4}, 1}}, engines::FinishReason::kLength, "", {}, {}};
  actors::add_probe(request, result, recent, job);
  EXPECT_TRUE(actors::has_comparison(job));
  ASSERT_EQ(job.probe.size(), 1U);
  EXPECT_THAT(job.probe[0].ids, ElementsAre(1, 2, 3, 9));
}

// Memory is planned for responses, so a probe may not be longer than they are.
TEST(TrainBatch, AProbeIsNoLongerThanAResponse) {
  const auto recent = snapshots({4});
  actors::TrainerOptions options;
  options.max_new_tokens = 3;
  EXPECT_EQ(actors::probe_request({row_of(0, 0, 2)}, options, recent).max_new_tokens, 3);
}

// -- metrics --------------------------------------------------------------------------------------

TEST(TrainBatch, MetricsOfABatch) {
  std::vector<TrainRow> rows{row_of(0, 0, 4), row_of(1, 0, 4), row_of(2, 1, 3), row_of(3, 1, 4)};
  rows[0].reward = 0.0;
  rows[1].truncated = true;
  actors::TrainOutcome outcome;
  outcome.updates.resize(2);
  outcome.updates[0].sums["loss"] = 1.0;
  outcome.updates[1].sums["loss"] = 2.0;
  outcome.updates[0].gradient_norm = 3.0;
  outcome.updates[1].learning_rate = 0.125;
  outcome.updates[0].recalled_tokens = 12;
  outcome.gap = {0.5, 8};
  const auto metrics = actors::batch_metrics(rows, outcome, 4);
  EXPECT_EQ(metrics.at("reward_mean"), 0.75);
  EXPECT_DOUBLE_EQ(metrics.at("reward_std"), std::sqrt(0.75 - 0.75 * 0.75));
  EXPECT_EQ(metrics.at("response_tokens"), 8.0);
  EXPECT_EQ(metrics.at("truncated_share"), 0.25);
  EXPECT_EQ(metrics.at("staleness_max"), 1.0);
  EXPECT_EQ(metrics.at("staleness_mean"), 0.25);
  EXPECT_EQ(metrics.at("groups"), 2.0);
  EXPECT_EQ(metrics.at("groups_without_signal"), 1.0);
  EXPECT_EQ(metrics.at("loss"), 1.5);
  EXPECT_EQ(metrics.at("gradient_norm"), 1.5);
  EXPECT_EQ(metrics.at("learning_rate"), 0.125);
  EXPECT_EQ(metrics.at("recalled_tokens"), 6.0);
  EXPECT_EQ(metrics.at("logprob_gap_max"), 0.5);
  EXPECT_EQ(metrics.at("logprob_gap_tokens"), 8.0);
}

TEST(TrainBatch, MetricsOfAnEmptyBatchAreFinite) {
  for (const auto& [name, value] : actors::batch_metrics({}, {}, 4)) {
    EXPECT_TRUE(std::isfinite(value)) << name;
  }
}

TEST(TrainBatch, PartsOfARewardHaveNamedMeans) {
  std::vector<TrainRow> rows{row_of(0, 0), row_of(1, 0)};
  rows[0].reward_parts = {1.0, 0.5};
  rows[1].reward_parts = {0.0, 1.0};
  std::map<std::string, double> metrics;
  actors::add_part_metrics(rows, {"number", "form"}, metrics);
  EXPECT_EQ(metrics, (std::map<std::string, double>{{"reward_form_mean", 0.75},
                                                    {"reward_number_mean", 0.5}}));
  const actors::SampleRecord record = actors::sample_record(rows[0], {"number", "form"});
  EXPECT_EQ(record.reward_parts, (std::map<std::string, double>{{"form", 0.5}, {"number", 1.0}}));
  metrics.clear();
  actors::add_part_metrics({}, {"number"}, metrics);
  EXPECT_TRUE(metrics.empty());
}

TEST(TrainBatch, ReadsThePartsOfAReward) {
  storage::LeasedRow leased = trainable_row(3, 1);
  for (storage::ColumnValue& cell : leased.columns) {
    if (cell.column.value == static_cast<std::uint32_t>(actors::SampleColumn::kReward)) {
      cell =
          actors::make_cell(actors::SampleColumn::kReward, std::vector<double>{0.75, 1.0, -0.25});
    }
  }
  const auto row = actors::read_train_row(leased);
  ASSERT_TRUE(row.ok()) << row.status().to_string();
  EXPECT_EQ(row.value().reward, 0.75);
  EXPECT_THAT(row.value().reward_parts, ElementsAre(1.0, -0.25));
}

TEST(TrainBatch, ASampleRecordHasTheFieldsOfItsRow) {
  TrainRow row = row_of(3, 1, 5);
  row.truncated = true;
  const actors::SampleRecord record = actors::sample_record(row, {});
  EXPECT_TRUE(record.reward_parts.empty());
  EXPECT_EQ(record.id, SampleId{3});
  EXPECT_EQ(record.finish_reason, "length");
  EXPECT_EQ(record.versions.at(0).version.step, 5U);
  EXPECT_THAT(record.response_ids, ElementsAre(7, 8));
}

}  // namespace
}  // namespace tidemill::test
