// SPDX-License-Identifier: Apache-2.0
// Declares the stream "samples", and encodes and decodes its image.
#include "actors/stream/stream_image.hpp"

#include <string>
#include <utility>

#include "actors/stream/sample_columns.hpp"
#include "base/archive.hpp"

namespace tidemill::actors {
namespace {

using storage::CellRule;
using storage::CellValues;
using storage::ColumnOptions;
using storage::ColumnType;
using storage::TaskOptions;

// A stream restores an image that lacks the last columns, so declaring further columns does not
// change the version.
constexpr std::uint32_t kImageVersion = 2;

constexpr std::uint64_t kVersionWords = 3;  // of one span in a cell of versions

// What the image holds in addition to the rows.
struct ImageHead {
  std::uint32_t version = kImageVersion;
  std::uint64_t next_group = 0;
  std::uint64_t next_draw = 0;
  std::int64_t finished_rows = 0;
  std::int64_t unfinished_rows = 0;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, ImageHead& x) {
  return f(x.version, x.next_group, x.next_draw, x.finished_rows, x.unfinished_rows);
}

std::string column_name(SampleColumn column) {
  return std::string(kSampleColumnNames[static_cast<std::size_t>(column)]);
}

std::vector<std::string> names(std::initializer_list<SampleColumn> columns) {
  std::vector<std::string> texts;
  for (const SampleColumn column : columns) {
    texts.push_back(column_name(column));
  }
  return texts;
}

ColumnOptions column(SampleColumn which, ColumnType type, CellRule rule = {}) {
  return {column_name(which), type, std::move(rule)};
}

CellRule values_of(CellValues values) {
  CellRule rule;
  rule.values = values;
  return rule;
}

CellRule one_element(CellValues values) {
  CellRule rule = values_of(values);
  rule.min_elements = 1;
  rule.max_elements = 1;
  return rule;
}

// One element for each token of the column `ids`.
CellRule per_token(SampleColumn ids, CellValues values) {
  CellRule rule = values_of(values);
  rule.as_long_as = column_name(ids);
  return rule;
}

// Spans that cover the tokens of the column `ids`.
CellRule spans_of(SampleColumn ids) {
  CellRule rule;
  rule.min_elements = kVersionWords;
  rule.multiple_of = kVersionWords;
  rule.counts = column_name(ids);
  return rule;
}

CellRule at_least_one(CellValues values) {
  CellRule rule = values_of(values);
  rule.min_elements = 1;
  return rule;
}

// Returns the columns in the order of `SampleColumn`.
std::vector<ColumnOptions> columns() {
  using enum SampleColumn;
  const CellRule ids = values_of(CellValues::kNotNegative);
  const CellRule finite = per_token(kResponseIds, CellValues::kFinite);
  return {column(kPromptIds, ColumnType::kInt32, ids),
          column(kPrompt, ColumnType::kString),
          column(kReferenceAnswer, ColumnType::kString),
          column(kFields, ColumnType::kString),
          column(kResponseIds, ColumnType::kInt32, ids),
          column(kBehaviorLogprobs, ColumnType::kFloat, finite),
          column(kVersions, ColumnType::kUInt64, spans_of(kResponseIds)),
          column(kFinish, ColumnType::kU8, one_element(CellValues::kAny)),
          column(kReward, ColumnType::kDouble, at_least_one(CellValues::kFinite)),
          column(kAdvantage, ColumnType::kFloat, one_element(CellValues::kFinite)),
          column(kResponseMask, ColumnType::kU8, per_token(kResponseIds, CellValues::kFlags)),
          column(kReferenceLogprobs, ColumnType::kFloat, finite),
          column(kValues, ColumnType::kFloat, finite),
          column(kTokenRewards, ColumnType::kFloat, finite),
          column(kTokenAdvantages, ColumnType::kFloat, finite),
          column(kPartialIds, ColumnType::kInt32, ids),
          column(kPartialLogprobs, ColumnType::kFloat, per_token(kPartialIds, CellValues::kFinite)),
          column(kPartialVersions, ColumnType::kUInt64, spans_of(kPartialIds))};
}

TaskOptions task(SampleTask which, std::vector<std::string> inputs,
                 std::vector<std::string> outputs, Duration lease) {
  TaskOptions options;
  options.name = std::string(kSampleTaskNames[static_cast<std::size_t>(which)]);
  options.inputs = std::move(inputs);
  options.outputs = std::move(outputs);
  options.lease = lease;
  return options;
}

}  // namespace

storage::StreamOptions sample_stream_options(const SampleStreamOptions& options) {
  using enum SampleColumn;
  storage::StreamOptions stream;
  stream.name = "samples";
  stream.incarnation = options.incarnation;
  stream.columns = columns();
  stream.tasks = {
      task(SampleTask::kRollout, names({kPromptIds}),
           names({kResponseIds, kBehaviorLogprobs, kVersions, kFinish}), options.lease),
      task(SampleTask::kReward, names({kPrompt, kReferenceAnswer, kFields, kResponseIds}),
           names({kReward}), options.lease),
      task(SampleTask::kAdvantage, names({kReward, kResponseIds, kFinish}), names({kAdvantage}),
           options.lease),
      task(SampleTask::kTrain,
           names({kPromptIds, kPrompt, kReferenceAnswer, kResponseIds, kBehaviorLogprobs, kVersions,
                  kFinish, kReward, kAdvantage}),
           {}, options.lease)};
  TaskOptions& rollout = stream.tasks[static_cast<std::size_t>(SampleTask::kRollout)];
  rollout.optional_outputs = names({kResponseMask, kReferenceLogprobs, kValues});
  rollout.progress = names({kPartialIds, kPartialLogprobs, kPartialVersions});
  TaskOptions& reward = stream.tasks[static_cast<std::size_t>(SampleTask::kReward)];
  reward.optional_inputs = names({kResponseMask});
  reward.optional_outputs = names({kTokenRewards});
  TaskOptions& advantage = stream.tasks[static_cast<std::size_t>(SampleTask::kAdvantage)];
  advantage.unit = storage::DeliveryUnit::kGroup;
  advantage.optional_inputs = names({kResponseMask, kReferenceLogprobs, kValues, kTokenRewards});
  advantage.optional_outputs = names({kTokenAdvantages});
  TaskOptions& train = stream.tasks[static_cast<std::size_t>(SampleTask::kTrain)];
  train.unit = storage::DeliveryUnit::kGroup;
  train.order = storage::DeliveryOrder::kStrict;
  train.max_staleness = options.max_staleness;
  train.optional_inputs = names({kResponseMask, kReferenceLogprobs, kValues, kTokenAdvantages});
  stream.max_group_size = options.group_size;
  stream.max_deliveries = options.max_deliveries;
  stream.on_failed = options.on_failed;
  stream.accept_column = column_name(kResponseIds);
  stream.limit_bytes = options.limit_bytes;
  stream.group_bytes = options.group_bytes;
  return stream;
}

StreamCapture capture_stream_table(const storage::StreamTable& stream, std::uint64_t next_group,
                                   std::uint64_t next_draw) {
  const storage::HeldSlots held = stream.index().held_slots();
  return {next_group, next_draw, held.accepted, held.running, stream.snapshot()};
}

StreamImage encode_stream_image(StreamCapture capture) {
  ImageHead head{kImageVersion, capture.next_group, capture.next_draw, capture.finished_rows,
                 capture.unfinished_rows};
  ArchiveWriter writer;
  writer(head, capture.snapshot);
  return {Buffer::adopt(writer.take(), DType::kU8)};
}

Result<std::shared_ptr<const RestoredStream>> decode_stream_image(const StreamImage& image) {
  if (image.bytes.size_bytes() == 0) {
    return std::shared_ptr<const RestoredStream>();
  }
  ImageHead head;
  auto restored = std::make_shared<RestoredStream>();
  ArchiveReader reader(image.bytes.bytes());
  reader(head);
  if (head.version != kImageVersion) {
    return corrupt_data("stream image has version " + std::to_string(head.version) +
                        "; this program reads version " + std::to_string(kImageVersion));
  }
  reader(restored->snapshot);
  TIDEMILL_RETURN_IF_ERROR(reader.finish().with_context("stream image"));
  restored->origin = {head.next_group, head.next_draw, head.finished_rows, head.unfinished_rows};
  return std::shared_ptr<const RestoredStream>(std::move(restored));
}

}  // namespace tidemill::actors
