// SPDX-License-Identifier: Apache-2.0
// Compares attention with double precision, and its gradients with central differences.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <tuple>

#include "tests/engines/ops/cache.hpp"
#include "tests/engines/ops/fixtures.hpp"
#include "tests/engines/ops/oracle.hpp"

namespace tidemill::engines::ops_test {
namespace {

// Softmax weights carry the error of their scores, a few units in the last place of numbers of
// moderate size. Values average over the weights.
constexpr double kAttentionTolerance = 3e-6;
constexpr double kAttentionGradientTolerance = 1e-5;
// If operands are rounded to bfloat16, the float32 error of the sum that gave an operand can decide
// between two neighboring bfloat16 numbers. A term then changes by up to 2^-7 of its size. About
// one weight in ten thousand is affected. Terms are no larger than the scale.
constexpr double kOtherNeighbor = 0x1p-7;
constexpr double kMaxOthers = 0.05;  // fraction of elements, each a sum of up to a hundred terms

// Counts the compared elements, and those with a larger error than float32 explains.
struct Count {
  double all = 0.0;
  double others = 0.0;

  void add(const Rows& actual, const Table& expected, double tolerance) {
    double scale = 1.0;
    for (const double value : expected.values) {
      scale = std::max(scale, std::abs(value));
    }
    for (std::int64_t t = 0; t < expected.rows; ++t) {
      for (std::int64_t j = 0; j < expected.cols; ++j) {
        all += 1.0;
        others += std::abs(actual.at(t, j) - expected(t, j)) > tolerance * scale ? 1.0 : 0.0;
      }
    }
  }
};

class AttentionTest : public OpsTest {};

std::string name(const AttentionShape& shape, std::int64_t tokens) {
  return std::to_string(tokens) + " tokens, " + std::to_string(shape.num_heads) + "/" +
         std::to_string(shape.num_kv_heads) + " heads of " + std::to_string(shape.head_dim) +
         ", window " + std::to_string(shape.window) + ", pages of " +
         std::to_string(shape.page_tokens) + ", " + std::string(dtype_name(shape.kv_dtype));
}

// Returns keys or values rounded as the cache stores them.
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
  Count rounded;
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
          expect_table(actual.out, expected.out,
                       dtype == DType::kBF16 ? kOtherNeighbor : kAttentionTolerance,
                       name(shape, tokens));
          if (dtype == DType::kBF16) {
            rounded.add(actual.out, expected.out, kAttentionTolerance);
          }
          expect_table(actual.lse, expected.lse, kAttentionTolerance, name(shape, tokens) + " lse");
          ASSERT_FALSE(HasFatalFailure());
        }
      }
    }
  }
  EXPECT_EQ(cases, 240);
  EXPECT_LE(rounded.others, kMaxOthers * rounded.all);
}

TEST_P(AttentionTest, LseIsOptional) {
  RandomStream random(1);
  const AttentionShape shape = attention_shape(2, 1, 16, 0, 16, DType::kF32);
  const Sequence in(shape, 20, 1);
  const std::int64_t tokens = 20;
  TestCache cache(ops(), shape, std::span(&tokens, 1), random);
  const AttentionSegment segment{0, tokens, 0, cache.pages(0)};
  AttentionRows with(shape, tokens);
  AttentionRows without(shape, tokens);
  ops().kv_append(shape, std::span(&segment, 1), in.k.view(), in.v.view(), {}, cache.layer());
  ops().attention(shape, std::span(&segment, 1), in.q.view(), cache.layer(), with.out.view(),
                  with.lse.view());
  ops().attention(shape, std::span(&segment, 1), in.q.view(), cache.layer(), without.out.view(),
                  {});
  expect_same_bits(with.out, without.out, "out");
}

// Attention gives the same result if `kv_append` rotates the keys as if the caller rotates them
// first. Segments begin at any position, rows have gaps, and all types are tested.
TEST_P(AttentionTest, KvAppendRotatesKeys) {
  RandomStream random(3);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const std::int64_t head_dim : {8, 20, 64}) {
      const AttentionShape shape = attention_shape(4, 2, head_dim, 0, 16, dtype);
      const std::int64_t tokens = 37;
      const Sequence in(shape, tokens, 4);
      const Rows cosine = Rows::random(tokens, head_dim / 2, 5);
      const Rows sine = Rows::random(tokens, head_dim / 2, 6);
      const RopeTables tables{cosine.view(), sine.view()};
      Rows rotated = in.k;
      std::vector<std::int32_t> positions(static_cast<std::size_t>(tokens));
      std::iota(positions.begin(), positions.end(), 0);
      ops().rope(rotated.view(), head_dim, positions, tables, RopeDirection::kForward);

      const auto attend = [&](const Rows& k, const RopeTables& rotation) {
        TestCache cache(ops(), shape, std::span(&tokens, 1), random);
        const std::array<AttentionSegment, 2> parts{
            AttentionSegment{0, 21, 0, cache.pages(0)},
            AttentionSegment{21, tokens - 21, 21, cache.pages(0)}};
        ops().kv_append(shape, parts, k.view(), in.v.view(), rotation, cache.layer());
        AttentionRows result(shape, tokens);
        ops().attention(shape, parts, in.q.view(), cache.layer(), result.out.view(),
                        result.lse.view());
        return result;
      };
      const AttentionRows before = attend(rotated, {});
      const AttentionRows on_the_way = attend(in.k, tables);
      expect_same_bits(on_the_way.out, before.out, name(shape, tokens) + " out");
      expect_same_bits(on_the_way.lse, before.lse, name(shape, tokens) + " lse");
    }
  }
}

struct AttentionGradients {
  Table dq;
  Table dk;
  Table dv;
};

AttentionGradients difference_gradients(const AttentionShape& shape, const Sequence& in) {
  const Table q(in.q);
  const Table k(in.k);
  const Table v(in.v);
  const Table weights(in.dout);
  const auto loss = [&](const Table& a, const Table& b, const Table& c) {
    return dot(attention(shape, a, b, c).out, weights);
  };
  return {difference_gradient(q, [&](const Table& at) { return loss(at, k, v); }),
          difference_gradient(k, [&](const Table& at) { return loss(q, at, v); }),
          difference_gradient(v, [&](const Table& at) { return loss(q, k, at); })};
}

TEST_P(AttentionTest, GradientsAgreeWithDifferences) {
  // By case. They are the same for every backend and take nearly all of the test's time.
  static std::map<int, AttentionGradients> expected;
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
        if (!expected.contains(cases)) {
          expected.emplace(cases, difference_gradients(shape, in));
        }
        const AttentionGradients& gradients = expected.at(cases);
        const std::string what = name(shape, tokens);
        expect_table(actual.dq, gradients.dq, kAttentionGradientTolerance, what + " dq");
        expect_table(actual.dk, gradients.dk, kAttentionGradientTolerance, what + " dk");
        expect_table(actual.dv, gradients.dv, kAttentionGradientTolerance, what + " dv");
        ASSERT_FALSE(HasFatalFailure());
      }
    }
  }
  EXPECT_EQ(cases, 18);
}

// Longer sequences, wide heads and rounded keys are too slow for differences, so they are compared
// with the reference backend.
TEST_P(AttentionTest, GradientsOfLongSequencesAgreeWithTheReference) {
  const std::unique_ptr<Ops> reference = make_reference_host_ops();
  RandomStream random(3);
  int cases = 0;
  Count rounded;
  for (const std::int64_t head_dim : {16, 64, 128}) {
    for (const std::int64_t window : {0, 19}) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        const AttentionShape shape = attention_shape(4, 2, head_dim, window, 16, dtype);
        const Sequence in(shape, 90, static_cast<std::uint64_t>(++cases));
        const AttentionRows expected = run_alone(*reference, shape, in, random);
        const AttentionRows actual = run_alone(ops(), shape, in, random);
        const bool rounds = dtype == DType::kBF16;
        const double tolerance = rounds ? kOtherNeighbor : kAttentionGradientTolerance;
        for (const auto& [computed, reference_gradient, what] :
             {std::tuple{&actual.dq, &expected.dq, " dq"},
              {&actual.dk, &expected.dk, " dk"},
              {&actual.dv, &expected.dv, " dv"}}) {
          expect_table(*computed, Table(*reference_gradient), tolerance, name(shape, 90) + what);
          if (rounds) {
            rounded.add(*computed, Table(*reference_gradient), kAttentionGradientTolerance);
          }
        }
      }
    }
  }
  EXPECT_LE(rounded.others, kMaxOthers * rounded.all);
}

// Compares with operands that are not rounded. A rounded operand has a relative error of up to
// 2^-9. The errors of the terms of a sum are independent; those of q and k add up in the exponent.
TEST_P(AttentionTest, RoundingStaysSmall) {
  RandomStream random(7);
  const AttentionShape shape = attention_shape(4, 2, 64, 0, 16, DType::kBF16);
  AttentionShape exact = shape;
  exact.kv_dtype = DType::kF32;
  const Sequence in(shape, 90, 1);
  const AttentionRows actual = run_alone(ops(), shape, in, random);
  const AttentionRows expected = run_alone(ops(), exact, in, random);
  constexpr double kSmall = 0x1p-6;
  expect_table(actual.out, Table(expected.out), kSmall, "out");
  expect_table(actual.dq, Table(expected.dq), kSmall, "dq");
  expect_table(actual.dk, Table(expected.dk), kSmall, "dk");
  expect_table(actual.dv, Table(expected.dv), kSmall, "dv");
}

// Returns the largest difference divided by the largest gradient.
double distance(const Rows& actual, const Rows& expected) {
  double largest = 0.0;
  double difference = 0.0;
  for (std::int64_t t = 0; t < expected.rows(); ++t) {
    for (std::int64_t j = 0; j < expected.cols(); ++j) {
      largest = std::max(largest, std::abs(double{expected.at(t, j)}));
      difference =
          std::max(difference, std::abs(double{actual.at(t, j)} - double{expected.at(t, j)}));
    }
  }
  return difference / largest;
}

TEST_P(AttentionTest, WindowsGiveTheGradientsOfTheWhole) {
  RandomStream random(9);
  int cases = 0;
  for (const auto& [heads, kv_heads] : {std::pair{2, 2}, {4, 1}, {6, 2}}) {
    for (const std::int64_t window : {0, 5, 33}) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        const std::int64_t head_dim = std::array{20, 64, 15}[cases % 3];
        const std::int64_t page_tokens = std::array{16, 7, 24, 1}[cases % 4];
        const std::int64_t tokens = std::array{67, 90, 3, 33}[cases / 2 % 4];
        ++cases;
        const AttentionShape shape =
            attention_shape(heads, kv_heads, head_dim, window, page_tokens, dtype);
        const Sequence in(shape, tokens, static_cast<std::uint64_t>(cases));
        const AttentionRows whole = run_alone(ops(), shape, in, random);
        const AttentionRows one = run_in_windows(ops(), shape, in, std::array{tokens}, random);
        expect_same_bits(one.dq, whole.dq, "dq");
        expect_same_bits(one.dk, whole.dk, "dk");
        expect_same_bits(one.dv, whole.dv, "dv");
        for (const std::uint64_t longest : {1, 8, 50}) {
          std::vector<std::int64_t> cuts;
          for (std::int64_t at = 0; at < tokens;) {
            at = std::min(tokens, at + 1 + static_cast<std::int64_t>(random.below(longest)));
            cuts.push_back(at);
          }
          const AttentionRows actual = run_in_windows(ops(), shape, in, cuts, random);
          const std::string what =
              name(shape, tokens) + ", " + std::to_string(cuts.size()) + " windows";
          EXPECT_LE(distance(actual.dq, whole.dq), 1e-5) << what;
          EXPECT_LE(distance(actual.dk, whole.dk), 1e-5) << what;
          EXPECT_LE(distance(actual.dv, whole.dv), 1e-5) << what;
          const AttentionRows again = run_in_windows(ops(), shape, in, cuts, random);
          expect_same_bits(again.dq, actual.dq, what);
          expect_same_bits(again.dk, actual.dk, what);
          expect_same_bits(again.dv, actual.dv, what);
          ASSERT_FALSE(HasFailure()) << what;
        }
      }
    }
  }
  EXPECT_EQ(cases, 18);
}

// The backward pass of a window in the middle leaves rows of other tokens unchanged, and positions
// that no query of the window sees. It adds to the gradients of all other positions.
TEST_P(AttentionTest, WindowsAddToThePositionsThatTheySee) {
  RandomStream random(10);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const AttentionShape shape = attention_shape(2, 1, 16, 5, 16, dtype);
    const std::int64_t tokens = 30;
    const Sequence in(shape, tokens, 1);
    TestCache cache(ops(), shape, std::span(&tokens, 1), random);
    const AttentionSegment whole{0, tokens, 0, cache.pages(0)};
    AttentionRows rows(shape, tokens);
    ops().kv_append(shape, std::span(&whole, 1), in.k.view(), in.v.view(), {}, cache.layer());
    ops().attention(shape, std::span(&whole, 1), in.q.view(), cache.layer(), rows.out.view(),
                    rows.lse.view());
    AttentionRows more = rows;
    for (std::int64_t t = 0; t < tokens; ++t) {
      more.dq.at(t, 0) = more.dk.at(t, 0) = more.dv.at(t, 0) = 7.0F;
    }
    const AttentionSegment window{11, 6, 11, cache.pages(0)};
    for (AttentionRows* to : {&rows, &more}) {
      const KvGradient gradient{to->dk.view(), to->dv.view()};
      ops().attention_backward_windows(shape, std::span(&window, 1), std::span(&gradient, 1),
                                       in.q.view(), cache.layer(), rows.out.view(), rows.lse.view(),
                                       in.dout.view(), to->dq.view());
    }
    for (std::int64_t t = 0; t < tokens; ++t) {
      const bool inside = t >= 11 && t < 17;
      const bool seen = t >= 7 && t < 17;
      EXPECT_EQ(more.dq.at(t, 0), inside ? rows.dq.at(t, 0) : 7.0F) << t;
      EXPECT_EQ(rows.dk.at(t, 0) != 0.0F, seen) << t;
      EXPECT_EQ(rows.dv.at(t, 0) != 0.0F, seen) << t;
      EXPECT_NEAR(more.dk.at(t, 0), rows.dk.at(t, 0) + 7.0F, 1e-5) << t;
      EXPECT_NEAR(more.dv.at(t, 0), rows.dv.at(t, 0) + 7.0F, 1e-5) << t;
    }
  }
}

TEST_P(AttentionTest, BackwardOfASegmentTouchesOnlyItsRows) {
  RandomStream random(4);
  const AttentionShape shape = attention_shape(2, 2, 16, 0, 16, DType::kF32);
  const Sequence in(shape, 30, 1);
  const std::int64_t lengths[] = {10};
  TestCache cache(ops(), shape, lengths, random);
  const AttentionSegment segment{5, 10, 0, cache.pages(0)};
  AttentionRows rows(shape, 30);
  ops().kv_append(shape, std::span(&segment, 1), in.k.view(), in.v.view(), {}, cache.layer());
  ops().attention(shape, std::span(&segment, 1), in.q.view(), cache.layer(), rows.out.view(),
                  rows.lse.view());
  rows.dq.at(4, 0) = rows.dk.at(4, 0) = rows.dv.at(15, 0) = 7.0F;
  attention_backward(ops(), shape, std::span(&segment, 1), in.q, cache.layer(), in.dout, rows);
  EXPECT_EQ(rows.dq.at(4, 0), 7.0F);
  EXPECT_EQ(rows.dk.at(4, 0), 7.0F);
  EXPECT_EQ(rows.dv.at(15, 0), 7.0F);
  EXPECT_EQ(rows.dq.at(15, 0), 0.0F);
}

INSTANTIATE_TEST_SUITE_P(Backends, AttentionTest, ::testing::ValuesIn(backends()), backend_name);

}  // namespace
}  // namespace tidemill::engines::ops_test
