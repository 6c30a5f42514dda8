// SPDX-License-Identifier: Apache-2.0
// Tests that profiled operations compute the same bits and record their cost.
#include "engines/ops/profile/op_profile.hpp"
#include "tests/engines/ops/cache.hpp"
#include "tests/engines/ops/device_values.hpp"
#include "tests/engines/ops/fixtures.hpp"

namespace tidemill::engines::ops_test {
namespace {

constexpr std::int64_t kRows = 5;
constexpr std::int64_t kIn = 24;
constexpr std::int64_t kOut = 40;

struct Products {
  std::vector<float> y;
  std::vector<float> dx;
  std::vector<float> dw;
};

Products run_products(engines::Ops& ops) {
  const Rows w = Rows::random(kOut, kIn, 1);
  const DeviceValues x(ops, kRows, kIn, Rows::random(kRows, kIn, 2).values());
  const DeviceValues y(ops, kRows, kOut);
  const DeviceValues dx(ops, kRows, kIn);
  const DeviceValues dw(ops, kOut, kIn);
  const auto weight =
      ops.prepare_weight(f32_weight(w), DType::kF32, WeightUse::kForwardAndBackward).value();
  ops.linear(x.matrix(), *weight, {}, Store::kOverwrite, y.matrix());
  ops.linear(x.matrix(), *weight, {}, Store::kAdd, y.matrix());
  ops.linear_backward_input(y.matrix(), *weight, Store::kOverwrite, dx.matrix());
  ops.linear_backward_weight(y.matrix(), x.matrix(), dw.matrix());
  return {y.read(), dx.read(), dw.read()};
}

TEST(ProfiledOps, GiveTheSameBitsAndCountMultiplyAdds) {
  Workers workers(1);
  OpProfile profile;
  const std::unique_ptr<engines::Ops> plain = make_cpu_ops(workers).value();
  const std::unique_ptr<engines::Ops> profiled =
      make_profiled_ops(make_cpu_ops(workers).value(), profile);
  EXPECT_EQ(profiled->description(), plain->description());
  const Products expected = run_products(*plain);
  const Products actual = run_products(*profiled);
  EXPECT_EQ(actual.y, expected.y);
  EXPECT_EQ(actual.dx, expected.dx);
  EXPECT_EQ(actual.dw, expected.dw);

  constexpr double kProduct = 2.0 * kRows * kIn * kOut;
  const OpRecord& forward = profile.records.at("linear 24 x 40");
  EXPECT_EQ(forward.calls, 2);
  EXPECT_DOUBLE_EQ(forward.flops, 2 * kProduct);
  // The weight in panels of 16 outputs, the input and the result.
  EXPECT_DOUBLE_EQ(forward.bytes, 2 * 4.0 * (48 * kIn + kRows * (kIn + kOut)));
  EXPECT_DOUBLE_EQ(profile.records.at("linear dx 24 x 40").flops, kProduct);
  EXPECT_DOUBLE_EQ(profile.records.at("linear dw 24 x 40").flops, kProduct);
  EXPECT_EQ(profile.records.at("prepare_weight").calls, 1);
  EXPECT_EQ(profile.records.at("read").calls, 3);
  EXPECT_DOUBLE_EQ(profile.records.at("write").bytes, 2 * 4.0 * kRows * kIn);
  EXPECT_EQ(profile.records.at("fill").calls, 4);
  EXPECT_EQ(profile.records.size(), 7U);
  double seconds = 0.0;
  for (const auto& [name, record] : profile.records) {
    EXPECT_GE(record.seconds, 0.0) << name;
    seconds += record.seconds;
  }
  EXPECT_DOUBLE_EQ(profile.seconds(), seconds);
}

// A group counts as the sum of its layers.
TEST(ProfiledOps, AGroupOfLinearLayersIsOneOperation) {
  Workers workers(1);
  OpProfile profile;
  const std::unique_ptr<engines::Ops> ops =
      make_profiled_ops(make_cpu_ops(workers).value(), profile);
  const Rows values = Rows::random(kOut, kIn, 1);
  const auto wide =
      ops->prepare_weight(f32_weight(values), DType::kF32, WeightUse::kForward).value();
  const auto narrow = ops->prepare_weight({values.view().data, DType::kF32, 8, kIn}, DType::kF32,
                                          WeightUse::kForward)
                          .value();
  const DeviceValues x(*ops, kRows, kIn);
  const DeviceValues first(*ops, kRows, kOut);
  const DeviceValues second(*ops, kRows, 8);
  const std::vector<engines::LinearTerm> terms = {{wide.get(), {}, first.matrix()},
                                                  {narrow.get(), {}, second.matrix()}};
  ops->linear_group(x.matrix(), terms, Store::kOverwrite);
  const OpRecord& record = profile.records.at("linear 24 x 40+8");
  EXPECT_EQ(record.calls, 1);
  EXPECT_DOUBLE_EQ(record.flops, 2.0 * kRows * kIn * (kOut + 8));
}

// Runs attention of one sequence on zeros, forward and backward.
void run_attention(engines::Ops& ops, const AttentionShape& shape, std::int64_t tokens) {
  const std::int64_t cols = shape.num_heads * shape.head_dim;
  const std::int64_t key_cols = shape.num_kv_heads * shape.head_dim;
  const DeviceValues q(ops, tokens, cols);
  const DeviceValues out(ops, tokens, cols);
  const DeviceValues lse(ops, tokens, shape.num_heads);
  const DeviceValues k(ops, tokens, key_cols);
  const DeviceValues dk(ops, tokens, key_cols);
  const DeviceValues dv(ops, tokens, key_cols);
  const DeviceBlock pages = ops.memory().allocate(ops.kv_page_bytes(shape)).value();
  const engines::KvLayer cache{pages.address()};
  const std::vector<std::int32_t> page = {0};
  const AttentionSegment segment{0, tokens, 0, page};
  DeviceLists lists(ops);
  const SegmentList segments = lists.segments(std::span(&segment, 1));
  ops.kv_append(shape, segments, k.matrix(), k.matrix(), {}, cache);
  ops.attention(shape, segments, q.matrix(), cache, out.matrix(), lse.matrix());
  ops.attention_backward_windows(shape, segments, q.matrix(), cache, out.matrix(), lse.matrix(),
                                 out.matrix(), dk.matrix(), dv.matrix(), q.matrix());
}

// A query sees itself and the positions before it, limited by the attention window.
TEST(ProfiledOps, AttentionCountsThePositionsThatQueriesSee) {
  Workers workers(1);
  OpProfile profile;
  const std::unique_ptr<engines::Ops> ops =
      make_profiled_ops(make_cpu_ops(workers).value(), profile);
  constexpr std::int64_t kTokens = 6;
  for (const auto& [window, seen] : {std::pair<std::int64_t, double>{0, 21.0}, {2, 11.0}}) {
    profile.records.clear();
    const AttentionShape shape = attention_shape(4, 2, 8, window, 16, DType::kF32);
    run_attention(*ops, shape, kTokens);
    EXPECT_DOUBLE_EQ(profile.records.at("attention").flops, 4.0 * seen * 4 * 8) << window;
  }
}

TEST(ProfiledOps, RecordTheTypeOfOperands) {
  Workers workers(1);
  OpProfile profile;
  const std::unique_ptr<engines::Ops> ops =
      make_profiled_ops(make_cpu_ops(workers).value(), profile);
  const Rows w = Rows::random(kOut, kIn, 1);
  const DeviceValues x(*ops, kRows, kIn);
  const DeviceValues y(*ops, kRows, kOut);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const AttentionShape shape = attention_shape(4, 2, 8, 0, 16, dtype);
    run_attention(*ops, shape, 6);
    const auto weight = ops->prepare_weight(f32_weight(w), dtype, WeightUse::kForward).value();
    ops->linear(x.matrix(), *weight, {}, Store::kOverwrite, y.matrix());
    for (const char* name : {"attention", "attention_backward", "linear 24 x 40"}) {
      EXPECT_EQ(profile.records.at(name).operands, dtype) << name;
    }
  }
}

}  // namespace
}  // namespace tidemill::engines::ops_test
