// SPDX-License-Identifier: Apache-2.0
// Attention against double precision, and its gradients against central differences.
#include "tests/engines/ops/cache.hpp"
#include "tests/engines/ops/fixtures.hpp"
#include "tests/engines/ops/oracle.hpp"

namespace tidemill::engines::ops_test {
namespace {

// Softmax weights carry the error of their scores, some units of a few; values average over them.
constexpr double kTolerance = 3e-6;
constexpr double kGradientTolerance = 1e-5;

class AttentionTest : public OpsTest {};

std::string name(const AttentionShape& shape, std::int64_t tokens) {
  return std::to_string(tokens) + " tokens, " + std::to_string(shape.num_heads) + "/" +
         std::to_string(shape.num_kv_heads) + " heads of " + std::to_string(shape.head_dim) +
         ", window " + std::to_string(shape.window) + ", pages of " +
         std::to_string(shape.page_tokens) + ", " + std::string(dtype_name(shape.kv_dtype));
}

// Keys and values as the cache keeps them.
Table stored(const AttentionShape& shape, const Rows& rows) {
  Table out(rows);
  if (shape.kv_dtype == DType::kBF16) {
    for (double& value : out.values) {
      value = bf16_to_float(float_to_bf16(static_cast<float>(value)));
    }
  }
  return out;
}

TEST_P(AttentionTest, AgreesWithDoublePrecision) {
  RandomStream random(1);
  int cases = 0;
  for (const std::int64_t head_dim : {8, 12, 16, 32, 64, 128}) {
    for (const auto& [heads, kv_heads] : {std::pair{1, 1}, {4, 2}, {6, 1}, {3, 3}, {14, 2}}) {
      for (const std::int64_t window : {0, 1, 5, 33}) {
        for (const DType dtype : {DType::kF32, DType::kBF16}) {
          const std::int64_t page_tokens = std::array{1, 4, 16, 24, 32}[cases % 5];
          const std::int64_t tokens = std::array{1, 7, 40, 65}[cases % 4];
          ++cases;
          const AttentionShape shape =
              attention_shape(heads, kv_heads, head_dim, window, page_tokens, dtype);
          const Sequence in(shape, tokens, static_cast<std::uint64_t>(cases));
          const AttentionRows actual = run_alone(ops(), shape, in, random);
          const AttentionResult expected =
              attention(shape, Table(in.q), stored(shape, in.k), stored(shape, in.v));
          expect_table(actual.out, expected.out, kTolerance, name(shape, tokens));
          expect_table(actual.lse, expected.lse, kTolerance, name(shape, tokens) + " lse");
          ASSERT_FALSE(HasFatalFailure());
        }
      }
    }
  }
  EXPECT_EQ(cases, 240);
}

TEST_P(AttentionTest, LseMayBeLeftOut) {
  RandomStream random(1);
  const AttentionShape shape = attention_shape(2, 1, 16, 0, 16, DType::kF32);
  const Sequence in(shape, 20, 1);
  const std::int64_t tokens = 20;
  TestCache cache(ops(), shape, std::span(&tokens, 1), random);
  const AttentionSegment segment{0, tokens, 0, cache.pages(0)};
  AttentionRows with(shape, tokens);
  AttentionRows without(shape, tokens);
  ops().kv_append(shape, std::span(&segment, 1), in.k.view(), in.v.view(), cache.layer());
  ops().attention(shape, std::span(&segment, 1), in.q.view(), cache.layer(), with.out.view(),
                  with.lse.view());
  ops().attention(shape, std::span(&segment, 1), in.q.view(), cache.layer(), without.out.view(),
                  {});
  expect_same_bits(with.out, without.out, "out");
}

TEST_P(AttentionTest, GradientsAgreeWithDifferences) {
  RandomStream random(2);
  int cases = 0;
  for (const auto& [heads, kv_heads] : {std::pair{1, 1}, {4, 2}, {3, 1}}) {
    for (const std::int64_t head_dim : {8, 12, 20}) {
      for (const std::int64_t window : {0, 4}) {
        const AttentionShape shape =
            attention_shape(heads, kv_heads, head_dim, window, 8, DType::kF32);
        const std::int64_t tokens = std::array{1, 11, 26}[cases++ % 3];
        const Sequence in(shape, tokens, static_cast<std::uint64_t>(cases));
        const AttentionRows actual = run_alone(ops(), shape, in, random);
        const Table q(in.q);
        const Table k(in.k);
        const Table v(in.v);
        const Table weights(in.dout);
        const auto loss = [&](const Table& a, const Table& b, const Table& c) {
          return dot(attention(shape, a, b, c).out, weights);
        };
        const std::string what = name(shape, tokens);
        expect_table(actual.dq,
                     difference_gradient(q, [&](const Table& at) { return loss(at, k, v); }),
                     kGradientTolerance, what + " dq");
        expect_table(actual.dk,
                     difference_gradient(k, [&](const Table& at) { return loss(q, at, v); }),
                     kGradientTolerance, what + " dk");
        expect_table(actual.dv,
                     difference_gradient(v, [&](const Table& at) { return loss(q, k, at); }),
                     kGradientTolerance, what + " dv");
        ASSERT_FALSE(HasFatalFailure());
      }
    }
  }
  EXPECT_EQ(cases, 18);
}

// Longer sequences, wide heads and rounded keys, too slow to difference: against the reference.
TEST_P(AttentionTest, GradientsOfLongSequencesAgreeWithTheReference) {
  const std::unique_ptr<Ops> reference = make_reference_ops();
  RandomStream random(3);
  int cases = 0;
  for (const std::int64_t head_dim : {16, 64, 128}) {
    for (const std::int64_t window : {0, 19}) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        const AttentionShape shape = attention_shape(4, 2, head_dim, window, 16, dtype);
        const Sequence in(shape, 90, static_cast<std::uint64_t>(++cases));
        const AttentionRows expected = run_alone(*reference, shape, in, random);
        const AttentionRows actual = run_alone(ops(), shape, in, random);
        expect_table(actual.dq, Table(expected.dq), kGradientTolerance, name(shape, 90) + " dq");
        expect_table(actual.dk, Table(expected.dk), kGradientTolerance, name(shape, 90) + " dk");
        expect_table(actual.dv, Table(expected.dv), kGradientTolerance, name(shape, 90) + " dv");
      }
    }
  }
}

TEST_P(AttentionTest, OneSegmentBackwardTouchesItsRowsAlone) {
  RandomStream random(4);
  const AttentionShape shape = attention_shape(2, 2, 16, 0, 16, DType::kF32);
  const Sequence in(shape, 30, 1);
  const std::int64_t lengths[] = {10};
  TestCache cache(ops(), shape, lengths, random);
  const AttentionSegment segment{5, 10, 0, cache.pages(0)};
  AttentionRows rows(shape, 30);
  ops().kv_append(shape, std::span(&segment, 1), in.k.view(), in.v.view(), cache.layer());
  ops().attention(shape, std::span(&segment, 1), in.q.view(), cache.layer(), rows.out.view(),
                  rows.lse.view());
  rows.dq.at(4, 0) = rows.dk.at(4, 0) = rows.dv.at(15, 0) = 7.0F;
  ops().attention_backward(shape, std::span(&segment, 1), in.q.view(), cache.layer(),
                           rows.out.view(), rows.lse.view(), in.dout.view(), rows.dq.view(),
                           rows.dk.view(), rows.dv.view());
  EXPECT_EQ(rows.dq.at(4, 0), 7.0F);
  EXPECT_EQ(rows.dk.at(4, 0), 7.0F);
  EXPECT_EQ(rows.dv.at(15, 0), 7.0F);
  EXPECT_EQ(rows.dq.at(15, 0), 0.0F);
}

INSTANTIATE_TEST_SUITE_P(Backends, AttentionTest, ::testing::ValuesIn(backends()), backend_name);

}  // namespace
}  // namespace tidemill::engines::ops_test
