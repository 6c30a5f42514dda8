// SPDX-License-Identifier: Apache-2.0
// Tests low-rank products of many adapters in one call: they must give the bits of separate calls.
#include <string>
#include <vector>

#include "tests/engines/ops/fixtures.hpp"

namespace tidemill::engines::ops_test {
namespace {

// The matrices of one adapter.
struct Pieces {
  std::unique_ptr<PreparedWeight> a;
  std::unique_ptr<PreparedWeight> b;
  Rows scaled_c;
};

Pieces make_pieces(Ops& ops, std::int64_t in, std::int64_t rank, std::int64_t out,
                   std::uint64_t seed) {
  const Rows a = Rows::random(rank, in, seed);
  const Rows b = Rows::random(out, rank, seed + 1);
  Pieces pieces;
  pieces.a = ops.prepare_weight(f32_weight(a), DType::kF32, WeightUse::kForward).value();
  pieces.b = ops.prepare_weight(f32_weight(b), DType::kF32, WeightUse::kForward).value();
  pieces.scaled_c = Rows::random(seed % 2 == 0 ? 1 : 0, out, seed + 2);
  return pieces;
}

struct LowRankShape {
  std::int64_t in;
  std::int64_t out;
};

class LowRankTest : public OpsTest {
protected:
  // Compares terms of several ranks and of 1 to 12 rows, some of them with unused rows between,
  // with the three separate calls.
  static void check(Ops& ops, const LowRankShape& shape) {
    constexpr std::int64_t kRanks[] = {1, 3, 16, 17, 40, 256};
    std::vector<Pieces> pieces;
    std::vector<LowRankTerm> terms;
    std::int64_t rows = 0;
    for (std::int64_t i = 0; i < 13; ++i) {
      const std::int64_t rank = kRanks[i % 6];
      pieces.push_back(
          make_pieces(ops, shape.in, rank, shape.out, 100 + static_cast<std::uint64_t>(i)));
      const Pieces& made = pieces.back();
      const float scale = 0.25F + 0.5F * static_cast<float>(i);
      rows += i % 3;
      terms.push_back(
          {rows, 1 + i * 5 % 12, made.a.get(), made.b.get(), scale, made.scaled_c.span()});
      rows += terms.back().num_rows;
    }
    const Rows x = Rows::random(rows + 2, shape.in, 7, 1.0F, 3);
    const Rows before = Rows::random(rows + 2, shape.out, 8, 1.0F, 5);
    Rows expected = before;
    for (const LowRankTerm& term : terms) {
      Rows u(term.num_rows, term.a->out_features());
      ops.linear(x.view().slice_rows(term.first_row, term.num_rows), *term.a, {}, Store::kOverwrite,
                 u.view());
      ops.scale(term.scale, u.view());
      ops.linear(u.view(), *term.b, term.scaled_c, Store::kAdd,
                 expected.view().slice_rows(term.first_row, term.num_rows));
    }
    Rows together = before;
    ops.add_low_rank(x.view(), terms, together.view());
    const std::string what = std::to_string(shape.in) + " to " + std::to_string(shape.out);
    expect_same_bits(together, expected, what);
    Rows apart = before;
    for (const LowRankTerm& term : terms) {
      ops.add_low_rank(x.view(), {&term, 1}, apart.view());
    }
    expect_same_bits(apart, expected, what + ", one by one");
  }
};

TEST_P(LowRankTest, GivesTheBitsOfSeparateCalls) {
  for (const LowRankShape& shape :
       {LowRankShape{5, 3}, LowRankShape{64, 80}, LowRankShape{100, 129}, LowRankShape{344, 128}}) {
    check(ops(), shape);
  }
}

TEST_P(LowRankTest, TheNumberOfWorkersChangesNothing) {
  for (const int count : {1, 3, 5}) {
    Workers workers(count);
    const auto ops = make(workers);
    check(*ops, {256, 1000});
  }
}

TEST_P(LowRankTest, AnEmptyListOfTermsChangesNothing) {
  const Rows x = Rows::random(3, 8, 1);
  const Rows before = Rows::random(3, 5, 2);
  Rows y = before;
  ops().add_low_rank(x.view(), {}, y.view());
  expect_same_bits(y, before, "no terms");
}

INSTANTIATE_TEST_SUITE_P(Backends, LowRankTest, ::testing::ValuesIn(backends()), backend_name);

}  // namespace
}  // namespace tidemill::engines::ops_test
