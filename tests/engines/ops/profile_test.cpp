// SPDX-License-Identifier: Apache-2.0
// Tests that profiled operations compute the same bits and record their cost.
#include "engines/ops/profile/op_profile.hpp"
#include "tests/engines/ops/cache.hpp"
#include "tests/engines/ops/fixtures.hpp"

namespace tidemill::engines::ops_test {
namespace {

constexpr std::int64_t kRows = 5;
constexpr std::int64_t kIn = 24;
constexpr std::int64_t kOut = 40;

struct Products {
  Rows y{kRows, kOut};
  Rows dx{kRows, kIn};
  Rows dw{kOut, kIn};
};

Products run_products(Ops& ops) {
  const Rows w = Rows::random(kOut, kIn, 1);
  const Rows x = Rows::random(kRows, kIn, 2);
  const auto weight =
      ops.prepare_weight(f32_weight(w), DType::kF32, WeightUse::kForwardAndBackward).value();
  Products out;
  ops.linear(x.view(), *weight, {}, Store::kOverwrite, out.y.view());
  ops.linear(x.view(), *weight, {}, Store::kAdd, out.y.view());
  ops.linear_backward_input(out.y.view(), *weight, Store::kOverwrite, out.dx.view());
  ops.linear_backward_weight(out.y.view(), x.view(), out.dw.view());
  return out;
}

TEST(ProfiledOps, GiveTheSameBitsAndCountMultiplyAdds) {
  Workers workers(1);
  OpProfile profile;
  const std::unique_ptr<Ops> plain = make_cpu_ops(workers).value();
  const std::unique_ptr<Ops> profiled = make_profiled_ops(make_cpu_ops(workers).value(), profile);
  EXPECT_EQ(profiled->description(), plain->description());
  const Products expected = run_products(*plain);
  const Products actual = run_products(*profiled);
  expect_same_bits(actual.y, expected.y, "y");
  expect_same_bits(actual.dx, expected.dx, "dx");
  expect_same_bits(actual.dw, expected.dw, "dw");

  constexpr double kProduct = 2.0 * kRows * kIn * kOut;
  const OpRecord& forward = profile.records.at("linear 24 x 40");
  EXPECT_EQ(forward.calls, 2);
  EXPECT_DOUBLE_EQ(forward.flops, 2 * kProduct);
  // The weight in panels of 16 outputs, the input and the result.
  EXPECT_DOUBLE_EQ(forward.bytes, 2 * 4.0 * (48 * kIn + kRows * (kIn + kOut)));
  EXPECT_DOUBLE_EQ(profile.records.at("linear dx 24 x 40").flops, kProduct);
  EXPECT_DOUBLE_EQ(profile.records.at("linear dw 24 x 40").flops, kProduct);
  EXPECT_EQ(profile.records.at("prepare_weight").calls, 1);
  EXPECT_EQ(profile.records.size(), 4U);
  double seconds = 0.0;
  for (const auto& [name, record] : profile.records) {
    EXPECT_GE(record.seconds, 0.0) << name;
    seconds += record.seconds;
  }
  EXPECT_DOUBLE_EQ(profile.seconds(), seconds);
}

// A query sees itself and the positions before it, limited by the attention window.
TEST(ProfiledOps, AttentionCountsThePositionsThatQueriesSee) {
  Workers workers(1);
  OpProfile profile;
  const std::unique_ptr<Ops> ops = make_profiled_ops(make_cpu_ops(workers).value(), profile);
  RandomStream random(1);
  constexpr std::int64_t kTokens = 6;
  for (const auto& [window, seen] : {std::pair<std::int64_t, double>{0, 21.0}, {2, 11.0}}) {
    profile.records.clear();
    const AttentionShape shape = attention_shape(4, 2, 8, window, 16, DType::kF32);
    const Sequence sequence(shape, kTokens, 1);
    TestCache cache(*ops, shape, std::span(&kTokens, 1), random);
    const AttentionSegment segment{0, kTokens, 0, cache.pages(0)};
    AttentionRows rows(shape, kTokens);
    ops->kv_append(shape, std::span(&segment, 1), sequence.k.view(), sequence.v.view(), {},
                   cache.layer());
    ops->attention(shape, std::span(&segment, 1), sequence.q.view(), cache.layer(), rows.out.view(),
                   rows.lse.view());
    EXPECT_DOUBLE_EQ(profile.records.at("attention").flops, 4.0 * seen * 4 * 8) << window;
  }
}

TEST(ProfiledOps, RecordTheTypeOfOperands) {
  Workers workers(1);
  OpProfile profile;
  const std::unique_ptr<Ops> ops = make_profiled_ops(make_cpu_ops(workers).value(), profile);
  RandomStream random(1);
  const Rows w = Rows::random(kOut, kIn, 1);
  const Rows x = Rows::random(kRows, kIn, 2);
  Rows y(kRows, kOut);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const AttentionShape shape = attention_shape(4, 2, 8, 0, 16, dtype);
    (void)run_alone(*ops, shape, Sequence(shape, 6, 1), random);
    const auto weight = ops->prepare_weight(f32_weight(w), dtype, WeightUse::kForward).value();
    ops->linear(x.view(), *weight, {}, Store::kOverwrite, y.view());
    for (const char* name : {"attention", "attention_backward", "linear 24 x 40"}) {
      EXPECT_EQ(profile.records.at(name).operands, dtype) << name;
    }
  }
}

}  // namespace
}  // namespace tidemill::engines::ops_test
