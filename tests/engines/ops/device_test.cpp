// SPDX-License-Identifier: Apache-2.0
// Tests what device backends add to operations on host memory: memory, order, lists of a pass,
// copies, and sampling. Runs on every backend.
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "base/tensor/block_int8.hpp"
#include "base/tensor/float_tensor.hpp"
#include "engines/ops/host/device_access.hpp"
#include "engines/optimizer/gradient_norm.hpp"
#include "engines/sampling/sampler.hpp"
#include "tests/engines/ops/device_cases.hpp"
#include "tests/engines/ops/device_values.hpp"

namespace tidemill::engines {
namespace {

using Floats = std::vector<float>;

Floats counted(std::int64_t count) {
  Floats values;
  for (std::int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<float>(i) + 0.5F);
  }
  return values;
}

class DeviceOpsTest : public ::testing::TestWithParam<DeviceCase> {
protected:
  Workers workers_{2};
  std::unique_ptr<Ops> ops_ = GetParam().make(workers_);
};

TEST_P(DeviceOpsTest, ReadsWhatWasWrittenAlsoWithGapsBetweenRows) {
  const DeviceValues all(*ops_, 4, 5, counted(20));
  const Matrix part{all.matrix().data, 4, 3, 5};
  EXPECT_EQ(read_values(*ops_, part),
            (Floats{0.5F, 1.5F, 2.5F, 5.5F, 6.5F, 7.5F, 10.5F, 11.5F, 12.5F, 15.5F, 16.5F, 17.5F}));
  ops_->write(Floats(12, -1.0F), part);
  ops_->fill(9.0F, part.slice_rows(3, 1));
  EXPECT_EQ(all.read(), (Floats{-1, -1, -1, 3.5F,  4.5F,  -1, -1, -1, 8.5F,  9.5F,  //
                                -1, -1, -1, 13.5F, 14.5F, 9,  9,  9,  18.5F, 19.5F}));
}

// `write` takes its values at once, even if the operation runs later.
TEST_P(DeviceOpsTest, OperationsTakeEffectInTheOrderOfTheCalls) {
  const DeviceValues x(*ops_, Floats{1, 2, 3});
  Floats values = {10, 20, 30};
  ops_->scale(2.0F, x.matrix());
  ops_->write(std::span(values).first(1), x.vector().slice(0, 1));
  values.assign(3, -1.0F);
  ops_->scale(3.0F, x.matrix());
  EXPECT_EQ(x.read(), (Floats{30, 12, 18}));
}

// Operations that are pending when memory is freed still find it.
TEST_P(DeviceOpsTest, MemoryMayBeFreedBeforeOperationsHaveRun) {
  const DeviceValues sum(*ops_, 1, 100);
  for (int i = 1; i <= 50; ++i) {
    const DeviceValues term(*ops_, Floats(100, static_cast<float>(i)));
    ops_->add_scaled(term.matrix(), 1.0F, sum.matrix());
  }
  EXPECT_EQ(sum.read(), Floats(100, 1275.0F));
}

TEST_P(DeviceOpsTest, PreparedPassesMayBeReplacedBeforeOperationsHaveRun) {
  const DeviceValues from(*ops_, 3, 2, Floats{1, 2, 3, 4, 5, 6});
  const DeviceValues to(*ops_, 3, 2);
  DeviceLists lists(*ops_);
  for (std::int32_t row = 0; row < 3; ++row) {
    const std::vector<std::int32_t> one = {2 - row};
    ops_->copy_rows(from.matrix(), lists.indices(one), to.matrix().slice_rows(row, 1), {});
  }
  EXPECT_EQ(to.read(), (Floats{5, 6, 3, 4, 1, 2}));
}

TEST_P(DeviceOpsTest, CopyRowsGathersScattersAndSkips) {
  const DeviceValues from(*ops_, 4, 2, Floats{0, 1, 10, 11, 20, 21, 30, 31});
  const std::vector<std::int32_t> rows = {3, -1, 0};
  const std::vector<std::int32_t> targets = {1, 2, -1};
  PassContents contents;
  const PassRange from_range = contents.add_indices(rows);
  const PassRange to_range = contents.add_indices(targets);
  const auto pass = ops_->prepare_pass(std::move(contents), nullptr).value();
  const DeviceValues gathered(*ops_, 3, 2);
  ops_->copy_rows(from.matrix(), pass->indices(from_range), gathered.matrix(), {});
  EXPECT_EQ(gathered.read(), (Floats{30, 31, 0, 0, 0, 1}));
  const DeviceValues scattered(*ops_, 4, 2);
  ops_->copy_rows(from.matrix(), {}, scattered.matrix(), pass->indices(to_range));
  EXPECT_EQ(scattered.read(), (Floats{0, 0, 0, 1, 10, 11, 0, 0}));
  const DeviceValues both(*ops_, 4, 2);
  ops_->copy_rows(from.matrix(), pass->indices(from_range), both.matrix(), pass->indices(to_range));
  EXPECT_EQ(both.read(), (Floats{0, 0, 30, 31, 0, 0, 0, 0}));
}

TEST_P(DeviceOpsTest, CopyRoundsToBfloat16AndWidensExactly) {
  const Floats values = {1.0F, 1.00390625F, 1.01171875F, -3.1415926F, 0.0F, 1e-40F};
  const DeviceValues x(*ops_, 2, 3, values);
  const DeviceBlock halves = ops_->memory().allocate(12).value();
  const Matrix narrow{halves.address(), 2, 3, 3, DType::kBF16};
  const DeviceValues wide(*ops_, 2, 3);
  const DeviceValues same(*ops_, 2, 3);
  ops_->copy(x.matrix(), narrow);
  ops_->copy(narrow, wide.matrix());
  ops_->copy(x.matrix(), same.matrix());
  Floats expected;
  for (const float value : values) {
    expected.push_back(bf16_to_float(float_to_bf16(value)));
  }
  EXPECT_EQ(wide.read(), expected);
  EXPECT_EQ(same.read(), values);
}

TEST_P(DeviceOpsTest, AddsTransposedMatrices) {
  const DeviceValues x(*ops_, 2, 3, Floats{1, 2, 3, 4, 5, 6});
  const DeviceValues y(*ops_, 3, 2, Floats(6, 100.0F));
  ops_->add_transposed(x.matrix(), y.matrix());
  EXPECT_EQ(y.read(), (Floats{101, 104, 102, 105, 103, 106}));
}

TEST_P(DeviceOpsTest, TheSquaredNormHasTheBitsOfItsDefinition) {
  for (const std::int64_t size : {1, 100, 4096, 4097, 20000}) {
    const Floats values = counted(size);
    const DeviceValues x(*ops_, values);
    EXPECT_EQ(ops_->squared_norm(x.vector()).value(), squared_norm(std::span<const float>(values)))
        << size;
  }
  const DeviceValues nan(*ops_, Floats{1.0F, NAN});
  EXPECT_TRUE(std::isnan(ops_->squared_norm(nan.vector()).value()));
}

TEST_P(DeviceOpsTest, VectorsOfOneSizeReuseMemory) {
  PreparedVector vector = ops_->prepare_vector(Floats{1, 2}).value();
  const DeviceAddress address = vector.view().data;
  vector = ops_->prepare_vector(Floats{3, 4}, std::move(vector)).value();
  EXPECT_EQ(vector.view().data, address);
  EXPECT_EQ(read_values(*ops_, vector), (Floats{3, 4}));
  vector = ops_->prepare_vector(Floats{5, 6, 7}, std::move(vector)).value();
  EXPECT_EQ(read_values(*ops_, vector), (Floats{5, 6, 7}));
  EXPECT_TRUE(ops_->prepare_vector({}).value().empty());
}

TEST_P(DeviceOpsTest, TablesAndWeightsAreMadeFromDeviceMemory) {
  const Floats values = {1.0F, 1.00390625F, 3.0F, -4.0F};
  const DeviceValues parameters(*ops_, 2, 2, values);
  const std::vector<std::int32_t> ids = {1, 0};
  DeviceLists lists(*ops_);
  const DeviceValues rows(*ops_, 2, 2);
  auto table = ops_->replace_table(nullptr, parameters.matrix(), DType::kF32).value();
  ops_->embed(lists.indices(ids), *table, rows.matrix());
  EXPECT_EQ(rows.read(), (Floats{3.0F, -4.0F, 1.0F, 1.00390625F}));
  table = ops_->replace_table(std::move(table), parameters.matrix(), DType::kBF16).value();
  EXPECT_EQ(table->dtype(), DType::kBF16);
  EXPECT_EQ(table->size_bytes(), 8);
  ops_->embed(lists.indices(ids), *table, rows.matrix());
  EXPECT_EQ(rows.read(), (Floats{3.0F, -4.0F, 1.0F, 1.0F}));
  const auto weight =
      ops_->replace_weight(nullptr, parameters.matrix(), DType::kF32, WeightUse::kForward).value();
  const DeviceValues x(*ops_, Floats{2, 10});
  const DeviceValues y(*ops_, 1, 2);
  ops_->linear(x.matrix(), *weight, {}, Store::kOverwrite, y.matrix());
  EXPECT_EQ(y.read(), (Floats{12.0390625F, -34.0F}));
}

// A weight in int8 blocks has the rows of the quantized tensor, in whole panels and in the last
// one.
TEST_P(DeviceOpsTest, AWeightInBlocksIsATableToo) {
  constexpr std::int64_t kRows = 37;
  constexpr std::int64_t kCols = 96;
  Floats values = counted(kRows * kCols);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] *= i % 3 == 0 ? -0.37F : 0.01F;
  }
  const Tensor tensor = make_float_tensor(values, {kRows, kCols}, DType::kF32);
  const Tensor blocks = quantize_blocks(tensor, "table").value();
  std::vector<std::int32_t> ids = {36, 0, 15, 16, 31, 32, 5, 5};
  DeviceLists lists(*ops_);
  const auto rows_of = [&](const PreparedTable& table) {
    const DeviceValues rows(*ops_, std::ssize(ids), kCols);
    ops_->embed(lists.indices(ids), table, rows.matrix());
    return rows.read();
  };
  const auto expected = ops_->prepare_table(blocks).value();
  for (const Tensor* from : {&tensor, &blocks}) {
    const auto weight =
        ops_->prepare_weight(weight_view(*from), DType::kBlockI8, WeightUse::kForward).value();
    const auto tied = ops_->tied_table(*weight);
    EXPECT_EQ(tied->num_rows(), kRows);
    EXPECT_EQ(tied->width(), kCols);
    EXPECT_EQ(tied->dtype(), DType::kBlockI8);
    EXPECT_EQ(tied->size_bytes(), 0);
    EXPECT_EQ(rows_of(*tied), rows_of(*expected));
  }
}

// Ranges of rows give what all rows at once give, in new memory and over an older weight.
TEST_P(DeviceOpsTest, WeightsAndTablesAreLaidOutRangeByRange) {
  constexpr std::int64_t kRows = 150;
  constexpr std::int64_t kCols = 5;
  const DeviceValues older(*ops_, kRows, kCols, Floats(kRows * kCols, -3.0F));
  const DeviceValues parameters(*ops_, kRows, kCols, counted(kRows * kCols));
  const DeviceValues x(*ops_, 2, kCols, counted(2 * kCols));
  const std::vector<std::int32_t> ids = {0, 63, 64, 127, 128, 149};
  DeviceLists lists(*ops_);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const auto use = WeightUse::kForwardAndBackward;
    const auto whole = ops_->replace_weight(nullptr, parameters.matrix(), dtype, use).value();
    const auto whole_table = ops_->replace_table(nullptr, parameters.matrix(), dtype).value();
    for (const bool replaces : {false, true}) {
      std::unique_ptr<PreparedWeight> weight;
      std::unique_ptr<PreparedTable> table;
      if (replaces) {
        weight = ops_->replace_weight(nullptr, older.matrix(), dtype, use).value();
        table = ops_->replace_table(nullptr, older.matrix(), dtype).value();
      }
      for (const WeightRows rows : {WeightRows{0, 64}, WeightRows{64, 64}, WeightRows{128, 22}}) {
        weight =
            ops_->replace_weight(std::move(weight), parameters.matrix(), rows, dtype, use).value();
        table = ops_->replace_table(std::move(table), parameters.matrix(), rows, dtype).value();
      }
      EXPECT_EQ(weight->size_bytes(), whole->size_bytes());
      EXPECT_EQ(weight->seen_finite(), whole->seen_finite());
      const auto products = [&](const PreparedWeight& of) {
        const DeviceValues y(*ops_, 2, kRows);
        ops_->linear(x.matrix(), of, {}, Store::kOverwrite, y.matrix());
        return y.read();
      };
      EXPECT_EQ(products(*weight), products(*whole));
      const auto rows_of = [&](const PreparedTable& of) {
        const DeviceValues rows(*ops_, std::ssize(ids), kCols);
        ops_->embed(lists.indices(ids), of, rows.matrix());
        return rows.read();
      };
      EXPECT_EQ(rows_of(*table), rows_of(*whole_table));
    }
  }
}

// A range that is not finite is remembered by the ranges after it.
TEST_P(DeviceOpsTest, AWeightIsSeenFiniteIfAllItsRangesAre) {
  Floats values = counted(130);
  values[3] = std::nanf("");
  const DeviceValues parameters(*ops_, 130, 1, values);
  std::unique_ptr<PreparedWeight> weight;
  for (const WeightRows rows : {WeightRows{0, 64}, WeightRows{64, 66}}) {
    weight = ops_->replace_weight(std::move(weight), parameters.matrix(), rows, DType::kF32,
                                  WeightUse::kForward)
                 .value();
  }
  EXPECT_FALSE(weight->seen_finite());
}

TEST_P(DeviceOpsTest, AGroupOfLinearLayersIsTheLayersOneByOne) {
  const Floats values = counted(6);
  const DeviceValues parameters(*ops_, 2, 3, values);
  const auto weight =
      ops_->replace_weight(nullptr, parameters.matrix(), DType::kBF16, WeightUse::kForward).value();
  const DeviceValues x(*ops_, 1, 3, Floats{1.0F, -2.0F, 3.0F});
  const DeviceValues bias(*ops_, Floats{100.0F, 200.0F});
  const DeviceValues with_bias(*ops_, 1, 2);
  const DeviceValues without(*ops_, 1, 2);
  const std::vector<LinearTerm> terms = {{weight.get(), bias.vector(), with_bias.matrix()},
                                         {weight.get(), {}, without.matrix()}};
  ops_->linear_group(x.matrix(), terms, Store::kOverwrite);
  EXPECT_EQ(without.read(), (Floats{5.0F, 11.0F}));
  ops_->linear_group(x.matrix(), std::span(terms).first(1), Store::kAdd);
  EXPECT_EQ(with_bias.read(), (Floats{210.0F, 422.0F}));
}

// Tokens are those of the sampler; log-probabilities and entropies are those of
// `log_softmax_gather`, whatever else is sampled in the same call. One request that fails leaves
// the others alone.
TEST_P(DeviceOpsTest, SamplesAsTheSamplerDoes) {
  constexpr std::int64_t kRows = 6;
  constexpr std::int64_t kVocabulary = 700;
  Floats values;
  for (std::int64_t i = 0; i < kRows * kVocabulary; ++i) {
    values.push_back(std::sin(static_cast<float>(i)) * 4.0F);
  }
  values[static_cast<std::size_t>(2 * kVocabulary + 5)] = NAN;
  const DeviceValues logits(*ops_, kRows, kVocabulary, values);
  std::vector<SamplingOptions> options(kRows);
  options[1].temperature = 0.0F;
  options[3].temperature = 0.7F;
  options[4].temperature = 0.7F;
  options[4].top_p = 0.9F;
  options[4].repetition_penalty = 1.3F;
  const std::vector<std::int32_t> prompt = {3, 5};
  std::vector<SampleRequest> requests;
  for (const std::int64_t row : {0, 1, 2, 3, 4, 5}) {
    requests.push_back({row,
                        &options[static_cast<std::size_t>(row)],
                        {prompt, {}},
                        {7, SampleId{static_cast<std::uint64_t>(row)}, 2}});
  }
  requests.erase(requests.begin());  // not every row is sampled
  requests[3].wants_entropy = true;
  const std::vector<SampleOutcome> outcomes = ops_->sample(logits.matrix(), requests).value();
  ASSERT_EQ(outcomes.size(), requests.size());
  Sampler sampler;
  DeviceLists lists(*ops_);
  const DeviceValues logprob(*ops_, 1, 1);
  const DeviceValues entropy(*ops_, 1, 1);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const SampleRequest& request = requests[i];
    const auto row =
        std::span(values).subspan(static_cast<std::size_t>(request.row * kVocabulary), kVocabulary);
    const auto token = sampler.sample(row, *request.options, request.history, request.key);
    if (request.row == 2) {
      EXPECT_EQ(outcomes[i].error, token.status().message());
      EXPECT_EQ(outcomes[i].token, -1);
      continue;
    }
    EXPECT_EQ(outcomes[i].error, "");
    EXPECT_EQ(outcomes[i].token, token.value()) << request.row;
    const float temperature = request.options->temperature;
    ops_->log_softmax_gather(
        logits.matrix().slice_rows(request.row, 1), lists.indices({&outcomes[i].token, 1}),
        temperature == 0.0F ? 1.0F : 1.0F / temperature, logprob.vector(), entropy.vector());
    EXPECT_EQ(outcomes[i].logprob, logprob.read()[0]) << request.row;
    EXPECT_EQ(outcomes[i].entropy, request.wants_entropy ? entropy.read()[0] : 0.0F) << request.row;
  }
}

TEST_P(DeviceOpsTest, MemoryCountsItsBlocks) {
  DeviceMemory& memory = ops_->memory();
  const std::int64_t before = memory.used_bytes();
  const std::int64_t allocations = memory.num_allocations();
  DeviceBlock block = memory.allocate(1000).value();
  const DeviceBlock none = memory.allocate(0).value();
  EXPECT_TRUE(none.address().is_null());
  EXPECT_EQ(memory.used_bytes(), before + 1000);
  EXPECT_EQ(memory.num_allocations(), allocations + 1);
  DeviceBlock moved = std::move(block);
  EXPECT_EQ(moved.size_bytes(), 1000);
  moved = {};
  EXPECT_EQ(memory.used_bytes(), before);
}

INSTANTIATE_TEST_SUITE_P(Backends, DeviceOpsTest, ::testing::ValuesIn(device_cases()),
                         [](const auto& test) { return test.param.name; });

class GuardedMemoryTest : public ::testing::Test {
protected:
  Workers workers_{1};
  std::unique_ptr<Ops> ops_ = guarded(workers_, host::Execution::kImmediate);
};

using GuardedMemoryDeathTest = GuardedMemoryTest;

TEST_F(GuardedMemoryDeathTest, TheHostCannotReadDeviceAddresses) {
  const DeviceValues x(*ops_, Floats{1, 2, 3});
  const auto* address =
      reinterpret_cast<const volatile float*>(DeviceAccess::to_number(x.matrix().data));
  EXPECT_DEATH((void)*address, "");
  EXPECT_EQ(x.read(), (Floats{1, 2, 3}));
}

TEST_F(GuardedMemoryTest, NewBlocksHoldNan) {
  const DeviceBlock block = ops_->memory().allocate(400).value();
  for (const float value : read_values(*ops_, ConstVector{block.address(), 100})) {
    EXPECT_TRUE(std::isnan(value));
  }
}

TEST_F(GuardedMemoryTest, FreedBlocksAreJoinedAndTheLimitIsReported) {
  DeviceMemory& memory = ops_->memory();
  constexpr std::int64_t kBlock = std::int64_t{1} << 20U;
  std::vector<DeviceBlock> blocks;
  for (int i = 0; i < 60; ++i) {
    blocks.push_back(memory.allocate(kBlock).value());
  }
  const auto refused = memory.allocate(8 * kBlock);
  EXPECT_EQ(refused.status().code(), Errc::kResourceExhausted);
  EXPECT_EQ(refused.status().message(),
            "device memory: 8388608 bytes do not fit beside 62914560 "
            "of 67108864");
  for (const int i : {11, 13, 10, 12, 15, 14, 17, 16, 18}) {
    blocks[static_cast<std::size_t>(i)] = {};
  }
  EXPECT_TRUE(memory.allocate(9 * kBlock).ok());
  blocks.clear();
  EXPECT_TRUE(memory.allocate(63 * kBlock).ok());
}

}  // namespace
}  // namespace tidemill::engines
