// SPDX-License-Identifier: Apache-2.0
// Tests rules R1 to R3 of every operation on device memory, on every backend: each operation once
// per rule. On deferred guarded memory, an operation that reads what the host may have changed
// since its call, or that the host must not read, fails. `bits_test.cpp` tests the kernels of the
// processor in more detail.
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/tensor/float_tensor.hpp"
#include "engines/ops/ops.hpp"
#include "tests/engines/ops/device_cases.hpp"
#include "tests/engines/ops/device_values.hpp"
#include "tests/engines/ops/fixtures.hpp"

namespace tidemill::engines::device_bits {
namespace {

using ops_test::f32_weight;
using ops_test::Rows;
using Floats = std::vector<float>;
using Bits = std::vector<std::uint32_t>;
using Picked = std::span<const std::int64_t>;

constexpr std::int64_t kNumRows = 70;
constexpr std::int64_t kIn = 128;  // two blocks of NF4
constexpr std::int64_t kOut = 80;
constexpr std::int64_t kHeadDim = 16;

Bits to_bits(const Floats& values) {
  Bits bits;
  for (const float value : values) {
    bits.push_back(std::bit_cast<std::uint32_t>(value));
  }
  return bits;
}

std::vector<std::int64_t> all_rows() {
  std::vector<std::int64_t> rows(kNumRows);
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

std::vector<std::int32_t> as_ids(Picked rows) {
  return {rows.begin(), rows.end()};
}

// The operands of a batch, and a device to compute on.
struct Bench {
  explicit Bench(Ops& on) : ops(on) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kBlockI8, DType::kNf4}) {
      weights.push_back(prepare(w, dtype));
    }
    for (const std::int64_t rank : {3, 16}) {
      low_rank.push_back(prepare(Rows::random(rank, kIn, 20), DType::kF32));
      low_rank.push_back(prepare(Rows::random(kOut, rank, 21), DType::kF32));
    }
  }

  [[nodiscard]] std::unique_ptr<PreparedWeight> prepare(const Rows& values, DType dtype) const {
    return ops.prepare_weight(f32_weight(values), dtype, WeightUse::kForwardAndBackward).value();
  }
  [[nodiscard]] DeviceValues pick(const Rows& all, Picked rows) const {
    return {ops, std::ssize(rows), all.cols(), all.gather(rows).values()};
  }
  [[nodiscard]] DeviceValues empty(Picked rows, std::int64_t cols) const {
    return {ops, std::ssize(rows), cols};
  }
  [[nodiscard]] DeviceValues whole(const Rows& all) const {
    return {ops, all.rows(), all.cols(), all.values()};
  }

  Ops& ops;
  Rows w = Rows::random(kOut, kIn, 1);
  Rows x = Rows::random(kNumRows, kIn, 2);
  Rows y = Rows::random(kNumRows, kIn, 3);
  Rows z = Rows::random(kNumRows, kIn, 4);
  Rows dy = Rows::random(kNumRows, kOut, 5);
  Rows vector = Rows::random(1, kIn, 6);
  Rows bias = Rows::random(1, kOut, 7);
  std::vector<std::unique_ptr<PreparedWeight>> weights;   // of `w`, by type
  std::vector<std::unique_ptr<PreparedWeight>> low_rank;  // A and B of two adapters
};

Floats linear(const Bench& b, std::size_t weight, Picked rows) {
  const DeviceValues x = b.pick(b.x, rows);
  const DeviceValues y = b.pick(b.dy, rows);
  const DeviceValues bias = b.whole(b.bias);
  b.ops.linear(x.matrix(), *b.weights[weight], bias.vector(), Store::kAdd, y.matrix());
  return y.read();
}

Floats linear_backward_input(const Bench& b, std::size_t weight, Picked rows) {
  const DeviceValues dy = b.pick(b.dy, rows);
  const DeviceValues dx = b.pick(b.x, rows);
  b.ops.linear_backward_input(dy.matrix(), *b.weights[weight], Store::kAdd, dx.matrix());
  return dx.read();
}

Floats linear_group(const Bench& b, Picked rows) {
  const DeviceValues x = b.pick(b.x, rows);
  const DeviceValues first = b.empty(rows, kOut);
  const DeviceValues second = b.empty(rows, kOut);
  const std::array terms = {LinearTerm{b.weights[1].get(), {}, first.matrix()},
                            LinearTerm{b.weights[3].get(), {}, second.matrix()}};
  b.ops.linear_group(x.matrix(), terms, Store::kOverwrite);
  b.ops.add_scaled(first.matrix(), 0.5F, second.matrix());
  return second.read();
}

// Rows have one of two adapters, an adapter without a product, or none.
Floats add_low_rank(const Bench& b, Picked rows) {
  std::vector<RowRun> runs;
  for (std::int64_t i = 0; i < std::ssize(rows); ++i) {
    const std::int64_t adapter = rows[static_cast<std::size_t>(i)] / 5 % 4;
    if (adapter == 3) {
      continue;
    }
    if (!runs.empty() && runs.back().adapter == adapter &&
        runs.back().first_row + runs.back().num_rows == i) {
      ++runs.back().num_rows;
    } else {
      runs.push_back({i, 1, adapter});
    }
  }
  PassContents contents;
  contents.add_runs(std::array{RowRun{7, 7, 7}});  // another list
  const PassRange range = contents.add_runs(runs);
  const auto pass = b.ops.prepare_pass(std::move(contents), nullptr).value();
  const DeviceValues scaled_c = b.whole(b.bias);
  const std::array terms = {
      LowRankTerm{b.low_rank[0].get(), b.low_rank[1].get(), 0.25F, {}}, LowRankTerm{},
      LowRankTerm{b.low_rank[2].get(), b.low_rank[3].get(), 2.0F, scaled_c.vector()}};
  const DeviceValues x = b.pick(b.x, rows);
  const DeviceValues y = b.pick(b.dy, rows);
  b.ops.add_low_rank(x.matrix(), pass->runs(range), terms, y.matrix());
  return y.read();
}

Floats embed(const Bench& b, Picked rows) {
  const DeviceValues values = b.whole(b.y);
  const auto table = b.ops.replace_table(nullptr, values.matrix(), DType::kBF16).value();
  const DeviceValues out = b.empty(rows, kIn);
  DeviceLists lists(b.ops);
  b.ops.embed(lists.indices(as_ids(rows)), *table, out.matrix());
  return out.read();
}

Floats rms_norm_and_backward(const Bench& b, Picked rows) {
  const DeviceValues x = b.pick(b.x, rows);
  const DeviceValues dout = b.pick(b.y, rows);
  const DeviceValues dx = b.pick(b.z, rows);
  const DeviceValues gain = b.whole(b.vector);
  const DeviceValues normed = b.empty(rows, kIn);
  const DeviceValues rstd = b.empty(rows, 1);
  b.ops.rms_norm(x.matrix(), gain.vector(), 1e-6F, normed.matrix(), rstd.matrix().elements());
  b.ops.rms_norm_backward(dout.matrix(), x.matrix(), gain.vector(), rstd.matrix().elements(),
                          Store::kAdd, dx.matrix(), {});
  b.ops.add_scaled(normed.matrix(), 0.3F, dx.matrix());
  return dx.read();
}

Floats rope(const Bench& b, Picked rows) {
  const DeviceValues x = b.pick(b.x, rows);
  const DeviceValues cosine = b.whole(Rows::random(kNumRows, kHeadDim / 2, 8));
  const DeviceValues sine = b.whole(Rows::random(kNumRows, kHeadDim / 2, 9));
  DeviceLists lists(b.ops);
  b.ops.rope(x.matrix(), kHeadDim, lists.indices(as_ids(rows)), {cosine.matrix(), sine.matrix()},
             RopeDirection::kBackward);
  return x.read();
}

Floats swiglu_and_backward(const Bench& b, Picked rows) {
  const DeviceValues gate = b.pick(b.x, rows);
  const DeviceValues up = b.pick(b.y, rows);
  const DeviceValues dout = b.pick(b.z, rows);
  const DeviceValues out = b.empty(rows, kIn);
  b.ops.swiglu(gate.matrix(), up.matrix(), out.matrix());
  b.ops.swiglu_backward(dout.matrix(), gate.matrix(), up.matrix(), gate.matrix(), up.matrix());
  b.ops.add_scaled(gate.matrix(), 0.5F, out.matrix());
  b.ops.add_scaled(up.matrix(), 0.25F, out.matrix());
  return out.read();
}

Floats scales(const Bench& b, Picked rows) {
  const DeviceValues x = b.pick(b.x, rows);
  const DeviceValues y = b.pick(b.y, rows);
  const DeviceValues factors = b.whole(b.vector);
  b.ops.scale(0.7F, x.matrix());
  b.ops.scale_columns(x.matrix(), factors.vector(), factors.vector(), Store::kAdd, y.matrix());
  return y.read();
}

// Gathers rows, rounds them and widens them again.
Floats copies(const Bench& b, Picked rows) {
  const DeviceValues x = b.whole(b.x);
  const DeviceValues gathered = b.empty(rows, kIn);
  DeviceLists lists(b.ops);
  b.ops.copy_rows(x.matrix(), lists.indices(as_ids(rows)), gathered.matrix(), {});
  const DeviceBlock halves = b.ops.memory().allocate(std::ssize(rows) * kIn * 2).value();
  const Matrix narrow{halves.address(), std::ssize(rows), kIn, kIn, DType::kBF16};
  b.ops.copy(gathered.matrix(), narrow);
  b.ops.copy(narrow, gathered.matrix());
  return gathered.read();
}

Floats log_softmax(const Bench& b, Picked rows) {
  std::vector<std::int32_t> targets;
  for (const std::int64_t row : rows) {
    targets.push_back(row % 7 == 0 ? -1 : static_cast<std::int32_t>(row % kIn));
  }
  DeviceLists lists(b.ops);
  const IndexList list = lists.indices(targets);
  const DeviceValues logits = b.pick(b.x, rows);
  const DeviceValues logprobs = b.empty(rows, 1);
  const DeviceValues entropies = b.empty(rows, 1);
  b.ops.log_softmax_gather(logits.matrix(), list, 0.8F, logprobs.matrix().elements(),
                           entropies.matrix().elements());
  b.ops.log_softmax_backward(logits.matrix(), list, 0.8F, logprobs.matrix().elements(),
                             entropies.matrix().elements());
  return logits.read();
}

// The tokens, their log-probabilities and the entropies.
Floats sample(const Bench& b, Picked rows) {
  const DeviceValues logits = b.pick(b.x, rows);
  SamplingOptions options;
  options.temperature = 0.9F;
  options.top_p = 0.95F;
  std::vector<SampleRequest> requests;
  for (std::int64_t i = 0; i < std::ssize(rows); ++i) {
    const auto id = static_cast<std::uint64_t>(rows[static_cast<std::size_t>(i)]);
    requests.push_back({i, &options, {}, {3, SampleId{id}, 5}, true});
  }
  Floats results;
  for (const SampleOutcome& outcome : b.ops.sample(logits.matrix(), requests).value()) {
    EXPECT_EQ(outcome.error, "");
    results.insert(results.end(),
                   {static_cast<float>(outcome.token), outcome.logprob, outcome.entropy});
  }
  return results;
}

// An operation on rows: the results of the given rows of the batch, in that order.
struct RowOperation {
  std::string name;
  std::function<Floats(const Bench&, Picked)> compute;
};

std::vector<RowOperation> row_operations() {
  std::vector<RowOperation> operations = {{"linear_group", linear_group},
                                          {"add_low_rank", add_low_rank},
                                          {"embed", embed},
                                          {"rms_norm", rms_norm_and_backward},
                                          {"rope", rope},
                                          {"swiglu", swiglu_and_backward},
                                          {"scale", scales},
                                          {"copy", copies},
                                          {"log_softmax", log_softmax},
                                          {"sample", sample}};
  for (std::size_t i = 0; i < 4; ++i) {
    const std::string type = std::array{"f32", "bf16", "int8", "nf4"}[i];
    operations.push_back(
        {"linear " + type, [i](const Bench& b, Picked rows) { return linear(b, i, rows); }});
    operations.push_back({"linear_backward_input " + type, [i](const Bench& b, Picked rows) {
                            return linear_backward_input(b, i, rows);
                          }});
  }
  return operations;
}

// The parts of a batch that are passed to the summing operations one after the other.
using Ends = std::vector<std::int64_t>;

// Returns the results of all operations that sum over rows.
std::vector<Floats> sums(Ops& ops, const Ends& ends) {
  const std::int64_t num_rows = ends.back();
  const Bench b(ops);
  const DeviceValues x = b.whole(Rows::random(num_rows, kIn, 10));
  const DeviceValues y = b.whole(Rows::random(num_rows, kIn, 11));
  const DeviceValues dy = b.whole(Rows::random(num_rows, kOut, 12));
  const DeviceValues gain = b.whole(b.vector);
  const DeviceValues normed(ops, num_rows, kIn);
  const DeviceValues rstd(ops, num_rows, 1);
  const DeviceValues dx(ops, num_rows, kIn);
  std::vector<std::int32_t> ids;
  for (std::int64_t t = 0; t < num_rows; ++t) {
    ids.push_back(static_cast<std::int32_t>(t * t % 13));
  }
  DeviceLists lists(ops);
  const IndexList id_list = lists.indices(ids);
  const DeviceValues dw = b.whole(Rows::random(kOut, kIn, 13));
  const DeviceValues dbias = b.whole(b.bias);
  const DeviceValues dgain = b.whole(b.vector);
  const DeviceValues dhead_gain = b.whole(Rows::random(1, kHeadDim, 15));
  const DeviceValues dfactors = b.whole(b.vector);
  const DeviceValues dtable = b.whole(Rows::random(13, kIn, 14));
  ops.rms_norm(x.matrix(), gain.vector(), 1e-6F, normed.matrix(), rstd.matrix().elements());
  const DeviceValues head_rstd(ops, num_rows * kIn / kHeadDim, 1);
  const DeviceValues head_gain = b.whole(Rows::random(1, kHeadDim, 16));
  ops.fill(0.5F, head_rstd.matrix());
  std::int64_t first = 0;
  for (const std::int64_t end : ends) {
    const std::int64_t count = end - first;
    const auto part = [&](const DeviceValues& all) {
      return all.matrix().slice_rows(first, count);
    };
    ops.linear_backward_weight(part(dy), part(x), dw.matrix());
    ops.bias_backward(part(dy), dbias.vector());
    ops.rms_norm_backward(part(y), part(x), gain.vector(), part(rstd).elements(), Store::kOverwrite,
                          part(dx), dgain.vector());
    const std::int64_t heads = kIn / kHeadDim;
    ops.rms_norm_backward(part(y).as_rows_of(kHeadDim), part(x).as_rows_of(kHeadDim),
                          head_gain.vector(),
                          head_rstd.matrix().slice_rows(first * heads, count * heads).elements(),
                          Store::kOverwrite, part(dx).as_rows_of(kHeadDim), dhead_gain.vector());
    ops.embed_backward(id_list.slice(first, count), part(y), dtable.matrix());
    ops.scale_columns_backward(part(y), part(x), dfactors.vector());
    first = end;
  }
  return {dw.read(), dbias.read(), dgain.read(), dhead_gain.read(), dfactors.read(), dtable.read()};
}

// A sequence whose tokens go through attention in segments that end at `ends`, next to another
// sequence. Gradients are computed over the whole sequence. `shift` chooses the pages.
std::vector<Floats> attention(Ops& ops, DType kv_dtype, const Ends& ends, std::int32_t shift) {
  constexpr std::int64_t kTokens = 50;
  const AttentionShape shape{4, 2, kHeadDim, 0.25F, 20, 16, kv_dtype};
  const std::int64_t cols = shape.num_heads * kHeadDim;
  const std::int64_t key_cols = shape.num_kv_heads * kHeadDim;
  const std::vector<std::int32_t> pages = {shift, 7 - shift, shift + 1, 6 - shift};
  const std::vector<std::int32_t> other_page = {8};
  const DeviceBlock memory = ops.memory().allocate(9 * ops.kv_page_bytes(shape)).value();
  const KvLayer cache{memory.address()};
  const Rows q = Rows::random(kTokens, cols, 30);
  const Rows k = Rows::random(kTokens, key_cols, 31);
  const DeviceValues dout(ops, kTokens, cols, Rows::random(kTokens, cols, 32).values());
  const DeviceValues all_q(ops, kTokens, cols, q.values());
  const DeviceValues all_k(ops, kTokens, key_cols, k.values());
  const DeviceValues out(ops, kTokens, cols);
  const DeviceValues lse(ops, kTokens, shape.num_heads);
  // In every step, the other sequence has one row before those of the sequence.
  const DeviceValues step_q(ops, kTokens + 1, cols);
  const DeviceValues step_k(ops, kTokens + 1, key_cols);
  const DeviceValues step_out(ops, kTokens + 1, cols);
  const DeviceValues step_lse(ops, kTokens + 1, shape.num_heads);
  DeviceLists lists(ops);
  std::int64_t first = 0;
  for (std::int64_t step = 0; step < std::ssize(ends); ++step) {
    const std::int64_t count = ends[static_cast<std::size_t>(step)] - first;
    const auto copy = [&](const DeviceValues& from, const DeviceValues& to) {
      ops.copy(from.matrix().slice_rows(first, count), to.matrix().slice_rows(1, count));
    };
    copy(all_q, step_q);
    copy(all_k, step_k);
    const std::array segments = {AttentionSegment{0, 1, step, other_page},
                                 AttentionSegment{1, count, first, pages}};
    const SegmentList list = lists.segments(segments);
    const Matrix keys = step_k.matrix().slice_rows(0, count + 1);
    ops.kv_append(shape, list, keys, keys, {}, cache);
    ops.attention(shape, list, step_q.matrix().slice_rows(0, count + 1), cache,
                  step_out.matrix().slice_rows(0, count + 1),
                  step_lse.matrix().slice_rows(0, count + 1));
    ops.copy(step_out.matrix().slice_rows(1, count), out.matrix().slice_rows(first, count));
    ops.copy(step_lse.matrix().slice_rows(1, count), lse.matrix().slice_rows(first, count));
    first = ends[static_cast<std::size_t>(step)];
  }
  const DeviceValues dq(ops, kTokens, cols);
  const DeviceValues dk(ops, kTokens, key_cols);
  const DeviceValues dv(ops, kTokens, key_cols);
  const std::array whole = {AttentionSegment{0, kTokens, 0, pages}};
  ops.attention_backward_windows(shape, lists.segments(whole), all_q.matrix(), cache, out.matrix(),
                                 lse.matrix(), dout.matrix(), dk.matrix(), dv.matrix(),
                                 dq.matrix());
  return {out.read(), lse.read(), dq.read(), dk.read(), dv.read()};
}

// Runs every operation once.
std::vector<Bits> run_all_operations(Ops& ops) {
  const Bench b(ops);
  std::vector<Floats> results;
  for (const RowOperation& operation : row_operations()) {
    results.push_back(operation.compute(b, all_rows()));
  }
  for (const auto& values : {sums(ops, {300}), attention(ops, DType::kF32, {50}, 0),
                             attention(ops, DType::kBF16, {50}, 0)}) {
    results.insert(results.end(), values.begin(), values.end());
  }
  const DeviceValues transposed(ops, kIn, kNumRows);
  ops.add_transposed(b.whole(b.x).matrix(), transposed.matrix());
  results.push_back(transposed.read());
  const DeviceValues weights = b.whole(b.x);
  const DeviceValues first = b.whole(b.y);
  const DeviceValues second(ops, kNumRows, kIn);
  ops.fill(0.25F, second.matrix());
  constexpr AdamWFactors<float> kFactors{0.999F, 1.0F,   0.9F, 0.1F, 0.99F,
                                         0.01F,  0.001F, 1.0F, 1e-8F};
  ops.adamw(kFactors, {weights.matrix().elements(), b.whole(b.z).matrix().elements(),
                       first.matrix().elements(), second.matrix().elements()});
  results.insert(results.end(), {weights.read(), first.read(), second.read()});
  std::vector<Bits> bits;
  for (const Floats& values : results) {
    bits.push_back(to_bits(values));
  }
  const auto norm =
      std::bit_cast<std::uint64_t>(ops.squared_norm(first.matrix().elements()).value());
  bits.push_back({static_cast<std::uint32_t>(norm), static_cast<std::uint32_t>(norm >> 32U)});
  return bits;
}

class DeviceBitsTest : public ::testing::TestWithParam<DeviceCase> {
protected:
  Workers workers_{2};
  std::unique_ptr<Ops> ops_ = GetParam().make(workers_);
};

// R1.
TEST_P(DeviceBitsTest, RowsAreIndependent) {
  const Bench bench(*ops_);
  std::vector<std::vector<std::int64_t>> selections = {
      {kNumRows - 1}, {3, 4, 5}, {40, 7, 7, 69, 0, 12, 13, 14, 21}, all_rows()};
  std::reverse(selections.back().begin(), selections.back().end());
  for (const RowOperation& operation : row_operations()) {
    const Bits whole = to_bits(operation.compute(bench, all_rows()));
    const auto cols = std::ssize(whole) / kNumRows;
    for (const std::vector<std::int64_t>& rows : selections) {
      Bits expected;
      for (const std::int64_t row : rows) {
        expected.insert(expected.end(), whole.begin() + row * cols,
                        whole.begin() + (row + 1) * cols);
      }
      EXPECT_EQ(to_bits(operation.compute(bench, rows)), expected)
          << operation.name << ", " << rows.size() << " rows";
    }
  }
}

TEST_P(DeviceBitsTest, AttentionDoesNotDependOnCutsPagesAndNeighbors) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const std::vector<Floats> expected = attention(*ops_, dtype, {50}, 0);
    for (const auto& [ends, shift] : {std::pair{Ends{1, 2, 17, 50}, 0}, {Ends{33, 50}, 2}}) {
      const std::vector<Floats> actual = attention(*ops_, dtype, ends, shift);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        EXPECT_EQ(to_bits(actual[i]), to_bits(expected[i])) << dtype_name(dtype) << " " << i;
      }
    }
  }
}

// R2, where the backend declares it.
TEST_P(DeviceBitsTest, SumsDoNotDependOnHowRowsAreSplit) {
  const std::int64_t step = ops_->traits().row_sum_step;
  const std::vector<Floats> expected = sums(*ops_, {300 * step});
  for (Ends ends : {Ends{1, 2, 17, 150, 300}, Ends{299, 300}, Ends{64, 128, 300}}) {
    for (std::int64_t& end : ends) {
      end *= step;
    }
    const std::vector<Floats> actual = sums(*ops_, ends);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(to_bits(actual[i]), to_bits(expected[i])) << "sum " << i;
    }
  }
}

// R3.
TEST_P(DeviceBitsTest, TheNumberOfWorkersChangesNothing) {
  Workers one(1);
  const std::vector<Bits> expected = run_all_operations(*GetParam().make(one));
  for (const int count : {2, 5}) {
    Workers workers(count);
    const std::vector<Bits> actual = run_all_operations(*GetParam().make(workers));
    ASSERT_EQ(actual.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(actual[i], expected[i]) << count << " workers, result " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, DeviceBitsTest, ::testing::ValuesIn(device_cases()),
                         [](const auto& test) { return test.param.name; });

// Memory and the time at which operations run change no bit.
TEST(GuardedBits, AreThoseOfTheSameKernelsOnOtherMemory) {
  Workers workers(2);
  const std::vector<Bits> expected = run_all_operations(*make_cpu_ops(workers).value());
  EXPECT_EQ(expected.size(), 39U);
  for (const auto execution : {host::Execution::kImmediate, host::Execution::kDeferred}) {
    EXPECT_EQ(run_all_operations(*guarded(workers, execution)), expected);
  }
}

// A backend that declares a step need not keep R2 anywhere else.
TEST(SteppedBits, ChangeIfSumsAreCutElsewhere) {
  Workers workers(1);
  const auto ops = device_cases().back().make(workers);
  ASSERT_EQ(ops->traits().row_sum_step, 8);
  const std::vector<Floats> whole = sums(*ops, {304});
  const std::vector<Floats> cut = sums(*ops, {4, 304});
  for (const std::size_t i : {0, 1, 2, 4, 5}) {  // 3 sums 8 rows per token
    EXPECT_NE(to_bits(cut[i]), to_bits(whole[i])) << "sum " << i;
  }
}

}  // namespace
}  // namespace tidemill::engines::device_bits
