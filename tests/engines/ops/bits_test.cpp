// SPDX-License-Identifier: Apache-2.0
// Tests rules R1 to R3 of every operation as properties over random batches. Compares bits, without
// tolerances.
#include <array>
#include <functional>
#include <numeric>

#include "tests/engines/ops/cache.hpp"
#include "tests/engines/ops/fixtures.hpp"

namespace tidemill::engines::ops_test {
namespace {

class BitsTest : public OpsTest {};

constexpr std::int64_t kBatch = 130;

// -- R1: rows ------------------------------------------------------------------------------------

using RowFunction = std::function<Rows(std::span<const std::int64_t> rows, std::int64_t gap)>;

// `compute` returns the results of the given rows, in that order. Compares the results of random
// selections and of slices of every length with those of the whole batch.
void expect_rows_independent(const RowFunction& compute, const std::string& what) {
  std::vector<std::int64_t> all(kBatch);
  std::iota(all.begin(), all.end(), 0);
  const Rows whole = compute(all, 0);
  RandomStream random(11);
  for (std::int64_t count = 1; count <= kBatch; ++count) {
    std::vector<std::int64_t> mix(static_cast<std::size_t>(count));
    const bool slice = count % 2 == 0;
    const auto start =
        static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(kBatch - count + 1)));
    for (std::size_t i = 0; i < mix.size(); ++i) {
      mix[i] = slice ? start + static_cast<std::int64_t>(i)
                     : static_cast<std::int64_t>(random.below(kBatch));
    }
    const Rows some = compute(mix, static_cast<std::int64_t>(random.below(4)));
    for (std::int64_t t = 0; t < count; ++t) {
      ASSERT_TRUE(same_bits(some, t, whole, mix[static_cast<std::size_t>(t)]))
          << what << ": row " << mix[static_cast<std::size_t>(t)] << " as row " << t << " of "
          << count;
    }
  }
}

void check_linear_rows(Ops& ops, DType dtype) {
  for (const auto& [min_in, out] : {std::pair<std::int64_t, std::int64_t>{5, 3},
                                    {64, 80},
                                    {256, 96},  // with a few rows, rows are copied (spread_stride)
                                    {128, 344},
                                    {100, 129},
                                    {344, 128}}) {
    const auto block = static_cast<std::int64_t>(dtype_block_elements(dtype));
    const std::int64_t in = (min_in + block - 1) / block * block;
    const Rows w = Rows::random(out, in, 1);
    const Rows x = Rows::random(kBatch, in, 2);
    const Rows dy = Rows::random(kBatch, out, 3);
    const Rows bias = Rows::random(1, out, 4);
    const auto weight =
        ops.prepare_weight(f32_weight(w), dtype, WeightUse::kForwardAndBackward).value();
    const std::string what =
        std::string(dtype_name(dtype)) + " " + std::to_string(in) + " to " + std::to_string(out);
    expect_rows_independent(
        [&, out = out](std::span<const std::int64_t> rows, std::int64_t gap) {
          Rows y(std::ssize(rows), out, gap);
          ops.linear(x.gather(rows, gap).view(), *weight, bias.span(), Store::kOverwrite, y.view());
          return y;
        },
        "linear " + what);
    expect_rows_independent(
        [&](std::span<const std::int64_t> rows, std::int64_t gap) {
          Rows dx = x.gather(rows, gap);
          ops.linear_backward_input(dy.gather(rows, gap).view(), *weight, Store::kAdd, dx.view());
          return dx;
        },
        "linear_backward_input " + what);
  }
}

TEST_P(BitsTest, LinearRowsAreIndependentF32) {
  check_linear_rows(ops(), DType::kF32);
}
TEST_P(BitsTest, LinearRowsAreIndependentBf16) {
  check_linear_rows(ops(), DType::kBF16);
}

TEST_P(BitsTest, LinearRowsAreIndependentInt8) {
  check_linear_rows(ops(), DType::kBlockI8);
}

TEST_P(BitsTest, LinearRowsAreIndependentNf4) {
  check_linear_rows(ops(), DType::kNf4);
}

TEST_P(BitsTest, NormAndActivationRowsAreIndependent) {
  constexpr std::int64_t kWidth = 75;
  const Rows x = Rows::random(kBatch, kWidth, 1);
  const Rows y = Rows::random(kBatch, kWidth, 2);
  const Rows z = Rows::random(kBatch, kWidth, 3);
  const Rows gain = Rows::random(1, kWidth, 4);
  expect_rows_independent(
      [&](std::span<const std::int64_t> rows, std::int64_t gap) {
        Rows out(std::ssize(rows), kWidth, gap);
        ops().rms_norm(x.gather(rows).view(), gain.span(), 1e-6F, out.view(), {});
        return out;
      },
      "rms_norm");
  expect_rows_independent(
      [&](std::span<const std::int64_t> rows, std::int64_t gap) {
        Rows out = y.gather(rows, gap);
        Rows rstd(1, std::ssize(rows));
        const Rows mine = x.gather(rows, gap);
        ops().rms_norm(mine.view(), gain.span(), 1e-6F, out.view(), rstd.span());
        ops().rms_norm_backward(y.gather(rows).view(), mine.view(), gain.span(), rstd.span(),
                                Store::kAdd, out.view(), {});
        return out;
      },
      "rms_norm_backward");
  expect_rows_independent(
      [&](std::span<const std::int64_t> rows, std::int64_t gap) {
        Rows out(std::ssize(rows), kWidth, gap);
        ops().swiglu(x.gather(rows, gap).view(), y.gather(rows).view(), out.view());
        return out;
      },
      "swiglu");
  expect_rows_independent(
      [&](std::span<const std::int64_t> rows, std::int64_t gap) {
        Rows gate = x.gather(rows, gap);
        Rows up = y.gather(rows, gap);
        ops().swiglu_backward(z.gather(rows).view(), gate.view(), up.view(), gate.view(),
                              up.view());
        ops().add_scaled(gate.view(), 0.3F, up.view());
        return up;
      },
      "swiglu_backward and add_scaled");
  expect_rows_independent(
      [&](std::span<const std::int64_t> rows, std::int64_t gap) {
        Rows out = y.gather(rows, gap);
        const Rows factors = Rows::random(1, kWidth, 9);
        ops().scale_columns(x.gather(rows, gap).view(), factors.span(), factors.span(), Store::kAdd,
                            out.view());
        return out;
      },
      "scale_columns");
}

TEST_P(BitsTest, RopeAndEmbedRowsAreIndependent) {
  constexpr std::int64_t kHeadDim = 12;
  const Rows x = Rows::random(kBatch, 4 * kHeadDim, 1);
  const Rows cosine = Rows::random(kBatch, kHeadDim / 2, 2);
  const Rows sine = Rows::random(kBatch, kHeadDim / 2, 3);
  const Rows table = Rows::random(kBatch, 33, 4);
  const auto as_ids = [](std::span<const std::int64_t> rows) {
    return std::vector<std::int32_t>(rows.begin(), rows.end());
  };
  expect_rows_independent(
      [&](std::span<const std::int64_t> rows, std::int64_t gap) {
        Rows out = x.gather(rows, gap);
        ops().rope(out.view(), kHeadDim, as_ids(rows), {cosine.view(), sine.view()},
                   RopeDirection::kForward);
        return out;
      },
      "rope");
  expect_rows_independent(
      [&](std::span<const std::int64_t> rows, std::int64_t gap) {
        Rows out(std::ssize(rows), 33, gap);
        ops().embed(as_ids(rows), f32_weight(table), out.view());
        return out;
      },
      "embed");
}

TEST_P(BitsTest, TokenLossRowsAreIndependent) {
  for (const std::int64_t vocabulary : {21, 1500}) {
    const Rows logits = Rows::random(kBatch, vocabulary, 1, 3.0F);
    const Rows gradients = Rows::random(kBatch, 2, 2);
    const auto targets = [&](std::span<const std::int64_t> rows) {
      std::vector<std::int32_t> out;
      for (const std::int64_t row : rows) {
        out.push_back(row % 7 == 0 ? -1 : static_cast<std::int32_t>(row % vocabulary));
      }
      return out;
    };
    expect_rows_independent(
        [&](std::span<const std::int64_t> rows, std::int64_t gap) {
          const auto count = static_cast<std::size_t>(rows.size());
          std::vector<float> logprobs(count);
          std::vector<float> entropies(count);
          ops().log_softmax_gather(logits.gather(rows, gap).view(), targets(rows), 0.8F, logprobs,
                                   entropies);
          Rows out(std::ssize(rows), 2);
          for (std::size_t i = 0; i < count; ++i) {
            out.at(static_cast<std::int64_t>(i), 0) = logprobs[i];
            out.at(static_cast<std::int64_t>(i), 1) = entropies[i];
          }
          return out;
        },
        "log_softmax_gather");
    expect_rows_independent(
        [&](std::span<const std::int64_t> rows, std::int64_t gap) {
          std::vector<float> dlogprobs;
          std::vector<float> dentropies;
          for (const std::int64_t row : rows) {
            dlogprobs.push_back(gradients.at(row, 0));
            dentropies.push_back(gradients.at(row, 1));
          }
          Rows out = logits.gather(rows, gap);
          ops().log_softmax_backward(out.view(), targets(rows), 0.8F, dlogprobs, dentropies);
          return out;
        },
        "log_softmax_backward");
  }
}

// -- R1: attention -------------------------------------------------------------------------------

// One step of a random schedule: a segment of each chosen sequence, in random order.
struct Step {
  std::vector<std::size_t> sequences;
  std::vector<AttentionSegment> segments;
  std::int64_t rows = 0;
};

Step next_step(const TestCache& cache, std::span<const std::int64_t> lengths,
               std::span<const std::int64_t> done, RandomStream& random) {
  Step step;
  std::vector<std::size_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  shuffle(std::span<std::size_t>(order), random);
  for (const std::size_t s : order) {
    const std::int64_t left = lengths[s] - done[s];
    if (left == 0 || random.below(3) == 0) {
      continue;
    }
    const std::int64_t max_tokens = random.below(2) == 0 ? 1 : left;
    const auto tokens =
        1 + static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(max_tokens)));
    step.sequences.push_back(s);
    step.segments.push_back({step.rows, tokens, done[s], cache.pages(s)});
    step.rows += tokens;
  }
  return step;
}

// Copies the rows of a step's segments from the sequences to the batch.
void copy_rows(const Step& step, const std::function<const Rows&(std::size_t)>& from, Rows& to) {
  for (std::size_t i = 0; i < step.segments.size(); ++i) {
    const AttentionSegment& segment = step.segments[i];
    const Rows& sequence = from(step.sequences[i]);
    for (std::int64_t t = 0; t < segment.num_tokens; ++t) {
      std::copy_n(sequence.view().row(segment.first_position + t), sequence.cols(),
                  to.view().row(segment.first_row + t));
    }
  }
}

// Runs all sequences through random batches until they are done. Fails if the bits differ from
// those of `alone`.
void expect_schedule_gives(Ops& ops, const AttentionShape& shape,
                           const std::vector<Sequence>& sequences,
                           const std::vector<AttentionRows>& alone,
                           std::span<const std::int64_t> lengths, RandomStream& random) {
  TestCache cache(ops, shape, lengths, random);
  std::vector<std::int64_t> done(lengths.size(), 0);
  while (!std::equal(done.begin(), done.end(), lengths.begin())) {
    const Step step = next_step(cache, lengths, done, random);
    Rows q(step.rows, shape.num_heads * shape.head_dim, 3);
    Rows k(step.rows, shape.num_kv_heads * shape.head_dim, 1);
    Rows v(step.rows, shape.num_kv_heads * shape.head_dim, 2);
    copy_rows(
        step, [&](std::size_t s) -> const Rows& { return sequences[s].q; }, q);
    copy_rows(
        step, [&](std::size_t s) -> const Rows& { return sequences[s].k; }, k);
    copy_rows(
        step, [&](std::size_t s) -> const Rows& { return sequences[s].v; }, v);
    AttentionRows result(shape, step.rows, 1);
    ops.kv_append(shape, step.segments, k.view(), v.view(), {}, cache.layer());
    ops.attention(shape, step.segments, q.view(), cache.layer(), result.out.view(),
                  result.lse.view());
    for (std::size_t i = 0; i < step.segments.size(); ++i) {
      const AttentionSegment& segment = step.segments[i];
      const AttentionRows& expected = alone[step.sequences[i]];
      for (std::int64_t t = 0; t < segment.num_tokens; ++t) {
        const std::int64_t row = segment.first_row + t;
        const std::int64_t position = segment.first_position + t;
        ASSERT_TRUE(same_bits(result.out, row, expected.out, position)) << "position " << position;
        ASSERT_TRUE(same_bits(result.lse, row, expected.lse, position)) << "position " << position;
      }
      done[step.sequences[i]] += segment.num_tokens;
    }
  }
}

TEST_P(BitsTest, AttentionDoesNotDependOnCutsPagesAndNeighbors) {
  RandomStream random(5);
  int cases = 0;
  for (const std::int64_t head_dim : {8, 12, 64}) {
    for (const auto& [heads, kv_heads] : {std::pair{4, 2}, {3, 3}, {8, 1}}) {
      for (const std::int64_t window : {0, 6, 20}) {
        const DType dtype = cases % 2 == 0 ? DType::kF32 : DType::kBF16;
        AttentionShape shape = attention_shape(heads, kv_heads, head_dim, window,
                                               std::array{4, 16, 24}[cases % 3], dtype);
        ++cases;
        const std::vector<std::int64_t> lengths = {1, 5, 17, 50, 83};
        std::vector<Sequence> sequences;
        std::vector<AttentionRows> alone;
        for (const std::int64_t length : lengths) {
          sequences.emplace_back(shape, length, random.bits());
          alone.push_back(run_alone(ops(), shape, sequences.back(), random));
        }
        for (int schedule = 0; schedule < 3; ++schedule) {
          expect_schedule_gives(ops(), shape, sequences, alone, lengths, random);
          ASSERT_FALSE(HasFatalFailure()) << "head_dim " << head_dim << " window " << window;
        }
      }
    }
  }
}

// Borders of pages, segments and windows split pairs of positions at either half. The content of
// the other half, first NaN and later values that must not be seen yet, must not affect the result.
TEST_P(BitsTest, AttentionOverPairsDoesNotDependOnCutsAndPages) {
  RandomStream random(12);
  for (const std::int64_t page_tokens : {1, 3, 16, 17, 24}) {
    for (const std::int64_t window : {0, 1, 2, 7, 20}) {
      const AttentionShape shape = attention_shape(4, 2, 15, window, page_tokens, DType::kBF16);
      const AttentionShape usual = attention_shape(4, 2, 15, window, 16, DType::kBF16);
      const std::vector<std::int64_t> lengths = {1, 2, 33, 54};
      std::vector<Sequence> sequences;
      std::vector<AttentionRows> alone;
      for (const std::int64_t length : lengths) {
        sequences.emplace_back(shape, length, random.bits());
        alone.push_back(run_alone(ops(), usual, sequences.back(), random));
      }
      for (int schedule = 0; schedule < 3; ++schedule) {
        expect_schedule_gives(ops(), shape, sequences, alone, lengths, random);
        ASSERT_FALSE(HasFatalFailure()) << "pages of " << page_tokens << ", window " << window;
      }
    }
  }
}

TEST_P(BitsTest, AttentionGradientsDoNotDependOnNeighbors) {
  RandomStream random(6);
  for (const auto& [window, dtype] :
       {std::pair{0, DType::kF32}, {9, DType::kF32}, {0, DType::kBF16}, {9, DType::kBF16}}) {
    const AttentionShape shape = attention_shape(4, 2, 20, window, 16, dtype);
    const std::vector<std::int64_t> lengths = {3, 40, 1, 26};
    std::vector<Sequence> sequences;
    std::vector<AttentionRows> alone;
    for (const std::int64_t length : lengths) {
      sequences.emplace_back(shape, length, random.bits());
      alone.push_back(run_alone(ops(), shape, sequences.back(), random));
    }
    TestCache cache(ops(), shape, lengths, random);
    Step step;
    for (const std::size_t s : {2, 0, 3, 1}) {
      step.sequences.push_back(s);
      step.segments.push_back({step.rows, lengths[s], 0, cache.pages(s)});
      step.rows += lengths[s];
    }
    Rows q(step.rows, shape.num_heads * shape.head_dim, 1);
    Rows dout(step.rows, shape.num_heads * shape.head_dim, 2);
    Rows k(step.rows, shape.num_kv_heads * shape.head_dim, 1);
    Rows v(step.rows, shape.num_kv_heads * shape.head_dim, 2);
    copy_rows(
        step, [&](std::size_t s) -> const Rows& { return sequences[s].q; }, q);
    copy_rows(
        step, [&](std::size_t s) -> const Rows& { return sequences[s].dout; }, dout);
    copy_rows(
        step, [&](std::size_t s) -> const Rows& { return sequences[s].k; }, k);
    copy_rows(
        step, [&](std::size_t s) -> const Rows& { return sequences[s].v; }, v);
    AttentionRows all(shape, step.rows, 1);
    ops().kv_append(shape, step.segments, k.view(), v.view(), {}, cache.layer());
    ops().attention(shape, step.segments, q.view(), cache.layer(), all.out.view(), all.lse.view());
    attention_backward(ops(), shape, step.segments, q, cache.layer(), dout, all);
    for (std::size_t i = 0; i < step.segments.size(); ++i) {
      const AttentionRows& expected = alone[step.sequences[i]];
      for (std::int64_t t = 0; t < step.segments[i].num_tokens; ++t) {
        const std::int64_t row = step.segments[i].first_row + t;
        ASSERT_TRUE(same_bits(all.dq, row, expected.dq, t));
        ASSERT_TRUE(same_bits(all.dk, row, expected.dk, t));
        ASSERT_TRUE(same_bits(all.dv, row, expected.dv, t));
      }
    }
  }
}

// -- R2 ------------------------------------------------------------------------------------------

// Returns the results of the accumulating operations, called once for each part of a batch.
std::vector<Rows> accumulate(Ops& ops, std::span<const std::int64_t> cuts) {
  constexpr std::int64_t kOut = 45;
  constexpr std::int64_t kIn = 50;
  constexpr std::int64_t kWideOut = 83;  // both sides are too wide for the low-rank kernel
  constexpr std::int64_t kWideIn = 70;
  constexpr std::int64_t kRows = 2100;  // more than one block of any backend
  const Rows wide_dy = Rows::random(kRows, kWideOut, 10, 1.0F, 1);
  const Rows wide_x = Rows::random(kRows, kWideIn, 11, 1.0F, 2);
  const Rows dy = Rows::random(kRows, kOut, 1, 1.0F, 2);
  const Rows x = Rows::random(kRows, kIn, 2, 1.0F, 1);
  const Rows y = Rows::random(kRows, kIn, 3);
  const Rows gain = Rows::random(1, kIn, 4);
  std::vector<std::int32_t> ids(kRows);
  for (std::size_t t = 0; t < ids.size(); ++t) {
    ids[t] = static_cast<std::int32_t>(t * t % 13);
  }
  Rows normed(kRows, kIn);
  Rows rstd(1, kRows);
  ops.rms_norm(x.view(), gain.span(), 1e-6F, normed.view(), rstd.span());
  Rows dw = Rows::random(kOut, kIn, 5);
  Rows dbias = Rows::random(1, kOut, 6);
  Rows dgain = Rows::random(1, kIn, 7);
  Rows dtable = Rows::random(13, kIn, 8);
  Rows dfactors = Rows::random(1, kIn, 9);
  Rows wide_dw = Rows::random(kWideOut, kWideIn, 12);
  std::int64_t first = 0;
  for (const std::int64_t end : cuts) {
    const std::int64_t count = end - first;
    const auto from = static_cast<std::size_t>(first);
    const auto size = static_cast<std::size_t>(count);
    const ConstMatrix dy_part = dy.view().slice_rows(first, count);
    const ConstMatrix x_part = x.view().slice_rows(first, count);
    const ConstMatrix y_part = y.view().slice_rows(first, count);
    Rows dx(count, kIn);
    ops.linear_backward_weight(dy_part, x_part, dw.view());
    ops.linear_backward_weight(wide_dy.view().slice_rows(first, count),
                               wide_x.view().slice_rows(first, count), wide_dw.view());
    ops.bias_backward(dy_part, dbias.span());
    ops.rms_norm_backward(y_part, x_part, gain.span(), rstd.span().subspan(from, size),
                          Store::kOverwrite, dx.view(), dgain.span());
    ops.embed_backward(std::span(ids).subspan(from, size), x_part, dtable.view());
    ops.scale_columns_backward(y_part, x_part, dfactors.span());
    first = end;
  }
  EXPECT_EQ(first, kRows);
  return {dw, dbias, dgain, dtable, dfactors, wide_dw};
}

TEST_P(BitsTest, GradientsDoNotDependOnHowRowsAreSplit) {
  constexpr std::int64_t kRows = 2100;
  const std::vector<Rows> whole = accumulate(ops(), std::array{kRows});
  RandomStream random(7);
  for (int split = 0; split < 6; ++split) {
    std::vector<std::int64_t> cuts;
    const std::uint64_t largest = std::array<std::uint64_t, 3>{9, 200, 1500}[split % 3];
    for (std::int64_t at = 0; at < kRows;) {
      at = std::min(kRows, at + 1 + static_cast<std::int64_t>(random.below(largest)));
      cuts.push_back(at);
    }
    const std::vector<Rows> parts = accumulate(ops(), cuts);
    for (std::size_t i = 0; i < whole.size(); ++i) {
      expect_same_bits(parts[i], whole[i], "gradient " + std::to_string(i));
      ASSERT_FALSE(HasFatalFailure()) << cuts.size() << " parts";
    }
  }
}

// -- R3 ------------------------------------------------------------------------------------------

// Runs every operation once on operands that are large enough to be divided among workers.
std::vector<Rows> run_everything(Ops& ops) {
  constexpr std::int64_t kRows = 300;
  constexpr std::int64_t kIn = 200;
  constexpr std::int64_t kOut = 272;
  constexpr std::int64_t kHeadDim = 20;
  std::vector<Rows> results;
  const Rows w = Rows::random(kOut, kIn, 1);
  const Rows x = Rows::random(kRows, kIn, 2);
  const Rows dy = Rows::random(kRows, kOut, 3);
  const Rows gain = Rows::random(1, kIn, 4);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const auto weight =
        ops.prepare_weight(f32_weight(w), dtype, WeightUse::kForwardAndBackward).value();
    for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{9}, kRows}) {
      Rows y(rows, kOut);
      Rows dx(rows, kIn);
      ops.linear(x.view().slice_rows(0, rows), *weight, {}, Store::kOverwrite, y.view());
      ops.linear_backward_input(dy.view().slice_rows(0, rows), *weight, Store::kOverwrite,
                                dx.view());
      results.insert(results.end(), {y, dx});
    }
  }
  // A small weight: all panels are transposed once, and the rows are divided.
  const Rows narrow = Rows::random(kOut, 24, 1);
  const auto low_rank =
      ops.prepare_weight(f32_weight(narrow), DType::kF32, WeightUse::kForwardAndBackward).value();
  Rows narrow_dx(kRows, 24);
  ops.linear_backward_input(dy.view(), *low_rank, Store::kOverwrite, narrow_dx.view());
  results.push_back(narrow_dx);
  const Rows w_blocks = Rows::random(kOut, 192, 1);
  const Rows x_blocks = Rows::random(kRows, 192, 2);
  for (const DType dtype : {DType::kBlockI8, DType::kNf4}) {
    const auto blocks =
        ops.prepare_weight(f32_weight(w_blocks), dtype, WeightUse::kForwardAndBackward).value();
    for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{9}, kRows}) {
      Rows y(rows, kOut);
      Rows dx(rows, 192);
      ops.linear(x_blocks.view().slice_rows(0, rows), *blocks, {}, Store::kOverwrite, y.view());
      ops.linear_backward_input(dy.view().slice_rows(0, rows), *blocks, Store::kOverwrite,
                                dx.view());
      results.insert(results.end(), {y, dx});
    }
  }
  Rows dw(kOut, kIn);
  Rows dbias(1, kOut);
  ops.linear_backward_weight(dy.view(), x.view(), dw.view());
  ops.bias_backward(dy.view(), dbias.span());
  Rows normed(kRows, kIn);
  Rows rstd(1, kRows);
  Rows dx(kRows, kIn);
  Rows dgain(1, kIn);
  ops.rms_norm(x.view(), gain.span(), 1e-6F, normed.view(), rstd.span());
  ops.rms_norm_backward(normed.view(), x.view(), gain.span(), rstd.span(), Store::kOverwrite,
                        dx.view(), dgain.span());
  Rows activated(kRows, kIn);
  ops.swiglu(x.view(), normed.view(), activated.view());
  Rows dgate = x;
  Rows dup = normed;
  ops.swiglu_backward(activated.view(), dgate.view(), dup.view(), dgate.view(), dup.view());
  Rows rotated = x;
  std::vector<std::int32_t> positions(kRows);
  std::iota(positions.begin(), positions.end(), 0);
  const Rows cosine = Rows::random(kRows, kHeadDim / 2, 5);
  ops.rope(rotated.view(), kHeadDim, positions, {cosine.view(), cosine.view()},
           RopeDirection::kForward);
  Rows sum = x;
  ops.add_scaled(normed.view(), 0.5F, sum.view());
  ops.scale_columns(normed.view(), gain.span(), gain.span(), Store::kAdd, sum.view());
  Rows dfactors(1, kIn);
  ops.scale_columns_backward(normed.view(), x.view(), dfactors.span());
  Rows embedded(kRows, kIn);
  Rows dtable(kRows, kIn);
  ops.embed(positions, f32_weight(x), embedded.view());
  std::vector<std::int32_t> targets(kRows, 3);
  ops.embed_backward(targets, x.view(), dtable.view());
  Rows logprobs(1, kRows);
  Rows entropies(1, kRows);
  ops.log_softmax_gather(dy.view(), targets, 1.0F, logprobs.span(), entropies.span());
  Rows dlogits = dy;
  ops.log_softmax_backward(dlogits.view(), targets, 1.0F, logprobs.span(), entropies.span());
  results.insert(results.end(), {dw, dbias, normed, rstd, dx, dgain, activated, dgate, dup, rotated,
                                 sum, dfactors, embedded, dtable, logprobs, entropies, dlogits});
  RandomStream random(8);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const auto& [heads, kv_heads] : {std::pair{4, 2}, {5, 1}}) {
      const AttentionShape shape = attention_shape(heads, kv_heads, kHeadDim, 0, 16, dtype);
      const AttentionRows rows = run_in_windows(ops, shape, Sequence(shape, 150, 9),
                                                std::array<std::int64_t, 2>{47, 150}, random);
      results.insert(results.end(), {rows.out, rows.lse, rows.dq, rows.dk, rows.dv});
    }
  }
  return results;
}

TEST_P(BitsTest, TheNumberOfWorkersChangesNothing) {
  Workers one(1);
  const std::vector<Rows> expected = run_everything(*make(one));
  EXPECT_EQ(expected.size(), 62U);
  for (const int count : {2, 3, 7}) {
    Workers workers(count);
    const std::vector<Rows> actual = run_everything(*make(workers));
    for (std::size_t i = 0; i < expected.size(); ++i) {
      expect_same_bits(actual[i], expected[i],
                       std::to_string(count) + " workers, result " + std::to_string(i));
    }
  }
}

// Processors with FMA agree, so one processor can replay what another trained.
TEST(CpuBits, Avx512GivesTheBitsOfAvx2) {
  Workers workers(2);
  auto avx512 = make_cpu_host_ops(workers, {IsaLevel::kAvx512});
  if (!avx512.ok()) {
    GTEST_SKIP() << avx512.status().message();
  }
  const std::vector<Rows> expected =
      run_everything(*make_cpu_host_ops(workers, {IsaLevel::kAvx2}).value());
  const std::vector<Rows> actual = run_everything(*avx512.value());
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    expect_same_bits(actual[i], expected[i], "result " + std::to_string(i));
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, BitsTest, ::testing::ValuesIn(backends()), backend_name);

}  // namespace
}  // namespace tidemill::engines::ops_test
