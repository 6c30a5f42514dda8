// SPDX-License-Identifier: Apache-2.0
// Compares row-wise operations and token losses with double precision and central differences.
#include <cmath>
#include <numeric>

#include "tests/engines/ops/fixtures.hpp"
#include "tests/engines/ops/oracle.hpp"

namespace tidemill::engines::ops_test {
namespace {

// Covers a few float roundings; the longest chains are sums over a row.
constexpr double kRowsTolerance = 2e-6;
// Gradients go through two such steps.
constexpr double kRowsGradientTolerance = 4e-6;

class RowsTest : public OpsTest {};

RopeTables make_rope(std::int64_t positions, std::int64_t half, Rows& cosine, Rows& sine) {
  cosine = Rows(positions, half, 1);
  sine = Rows(positions, half, 2);
  for (std::int64_t p = 0; p < positions; ++p) {
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(p) / std::pow(100.0, static_cast<double>(i) / 8.0);
      cosine.at(p, i) = static_cast<float>(std::cos(angle));
      sine.at(p, i) = static_cast<float>(std::sin(angle));
    }
  }
  return {std::as_const(cosine).view(), std::as_const(sine).view()};
}

TEST_P(RowsTest, NarrowRoundsAndWidenIsExact) {
  for (const std::int64_t width : {1, 12, 64, 100}) {
    Rows x = Rows::random(7, width, 3);
    x.at(2, 0) = 1.00390625F;  // halfway, to even: down
    x.at(3, 0) = 1.01171875F;  // halfway, to even: up
    x.at(4, 0) = -3.4e38F;     // to infinity
    std::vector<std::uint16_t> halves(static_cast<std::size_t>(7 * width));
    ops().narrow(x.view(), halves);
    Rows back(7, width, 2);
    ops().widen(halves, back.view());
    std::size_t i = 0;
    for (std::int64_t t = 0; t < 7; ++t) {
      for (std::int64_t j = 0; j < width; ++j, ++i) {
        EXPECT_EQ(halves[i], float_to_bf16(x.at(t, j))) << x.at(t, j);
        EXPECT_EQ(back.at(t, j), bf16_to_float(halves[i]));
      }
    }
  }
}

TEST_P(RowsTest, ScaleMultipliesInPlace) {
  for (const std::int64_t width : {1, 12, 64, 100}) {
    const Rows x = Rows::random(7, width, 3);
    Rows y = x;
    ops().scale(-0.75F, y.view());
    for (std::int64_t t = 0; t < 7; ++t) {
      for (std::int64_t j = 0; j < width; ++j) {
        EXPECT_EQ(y.at(t, j), -0.75F * x.at(t, j));
      }
    }
  }
}

// The oracle is `adamw_update`, which golden tests compare with PyTorch.
TEST_P(RowsTest, AdamWHasTheBitsOfItsDefinition) {
  for (const std::int64_t size : {1, 15, 16, 1000, 70001}) {
    std::vector<Rows> parts;
    for (int seed = 0; seed < 4; ++seed) {
      parts.push_back(Rows::random(1, size, 10 + seed));
    }
    for (std::int64_t i = 0; i < size; ++i) {
      parts[3].at(0, i) *= parts[3].at(0, i);  // a second moment is not negative
    }
    const auto values = [size](Rows& rows) {
      return std::span<float>(&rows.at(0, 0), static_cast<std::size_t>(size));
    };
    std::vector<Rows> expected = parts;
    const auto factors = adamw_factors<float>(
        {}, {.learning_rate = 1e-3, .weight_decay = 0.1, .gradient_scale = 0.7, .step = 3});
    adamw_update<float>(factors, {values(expected[0]), values(expected[1]), values(expected[2]),
                                  values(expected[3])});
    ops().adamw(factors, {values(parts[0]), values(parts[1]), values(parts[2]), values(parts[3])});
    for (const std::size_t part : {0UL, 1UL, 2UL, 3UL}) {
      EXPECT_TRUE(same_bits(parts[part], 0, expected[part], 0)) << size << " " << part;
    }
  }
}

TEST_P(RowsTest, EmbedReadsRowsAndItsGradientAddsToThem) {
  const std::vector<std::int32_t> ids = {3, 0, 3, 6, 3};
  for (const std::int64_t width : {1, 12, 64, 100}) {
    const Rows table = Rows::random(7, width, 1);
    Rows out(5, width, 2);
    ops().embed(ids, f32_weight(table), out.view());
    for (std::int64_t t = 0; t < 5; ++t) {
      EXPECT_TRUE(same_bits(out, t, table, ids[static_cast<std::size_t>(t)]));
    }
    std::vector<std::uint16_t> bits;
    for (std::int64_t v = 0; v < 7; ++v) {
      for (std::int64_t j = 0; j < width; ++j) {
        bits.push_back(float_to_bf16(table.at(v, j)));
      }
    }
    ops().embed(ids, {bits.data(), DType::kBF16, 7, width}, out.view());
    EXPECT_EQ(out.at(3, width - 1), bf16_to_float(bits.back()));

    const Rows dout = Rows::random(5, width, 2);
    Rows dtable(7, width);
    ops().embed_backward(ids, dout.view(), dtable.view());
    for (std::int64_t j = 0; j < width; ++j) {
      EXPECT_EQ(dtable.at(3, j), dout.at(0, j) + dout.at(2, j) + dout.at(4, j));
      EXPECT_EQ(dtable.at(6, j), dout.at(3, j));
      EXPECT_EQ(dtable.at(5, j), 0.0F);
    }
  }
}

TEST_P(RowsTest, RmsNormAgreesWithDoublePrecision) {
  for (const std::int64_t width : {1, 8, 16, 31, 128, 1000}) {
    const Rows x = Rows::random(6, width, 1, 3.0F, 2);
    const Rows gain = Rows::random(1, width, 2);
    Rows out(6, width, 1);
    Rows rstd(1, 6);
    ops().rms_norm(x.view(), gain.span(), 1e-5F, out.view(), rstd.span());
    const Table expected = rms_norm(Table(x), Table(gain), double{1e-5F});
    expect_table(out, expected, kRowsTolerance, "rms_norm " + std::to_string(width));
    expect_close(out.at(2, 0), double{x.at(2, 0)} * rstd.at(0, 2) * gain.at(0, 0), kRowsTolerance,
                 4.0, "rstd");
    Rows in_place = x;
    ops().rms_norm(in_place.view(), gain.span(), 1e-5F, in_place.view(), {});
    expect_same_bits(in_place, out, "in place");
  }
}

TEST_P(RowsTest, RmsNormGradientsAgreeWithDifferences) {
  for (const std::int64_t width : {1, 5, 16, 37}) {
    const Rows x = Rows::random(4, width, 1, 1.0F, 2);
    const Rows gain = Rows::random(1, width, 2);
    const Rows dout = Rows::random(4, width, 3, 1.0F, 1);
    const double eps = double{1e-5F};
    Rows out(4, width);
    Rows rstd(1, 4);
    ops().rms_norm(x.view(), gain.span(), 1e-5F, out.view(), rstd.span());
    const Table weights(dout);
    const Table dx_expected = difference_gradient(
        Table(x), [&](const Table& at) { return dot(rms_norm(at, Table(gain), eps), weights); });
    const Table dgain_expected = difference_gradient(
        Table(gain), [&](const Table& at) { return dot(rms_norm(Table(x), at, eps), weights); });
    Rows dx(4, width, 3);
    Rows dgain(1, width);
    ops().rms_norm_backward(dout.view(), x.view(), gain.span(), rstd.span(), Store::kOverwrite,
                            dx.view(), dgain.span());
    expect_table(dx, dx_expected, kRowsGradientTolerance, "dx");
    expect_table(dgain, dgain_expected, kRowsGradientTolerance, "dgain");
    // Adds the gradient a second time, without that of the gain.
    ops().rms_norm_backward(dout.view(), x.view(), gain.span(), rstd.span(), Store::kAdd, dx.view(),
                            {});
    Table twice = dx_expected;
    for (double& value : twice.values) {
      value *= 2.0;
    }
    expect_table(dx, twice, kRowsGradientTolerance, "dx added");
  }
}

TEST_P(RowsTest, RopeRotatesAndRotatesBack) {
  for (const std::int64_t head_dim : {2, 8, 12, 32, 64, 128}) {
    Rows cosine;
    Rows sine;
    const RopeTables tables = make_rope(40, head_dim / 2, cosine, sine);
    const std::vector<std::int32_t> positions = {0, 39, 7, 7, 21};
    const Rows x = Rows::random(5, 3 * head_dim, 1, 1.0F, 2);
    Rows y = x;
    ops().rope(y.view(), head_dim, positions, tables, RopeDirection::kForward);
    const auto rotated = [&](const Table& at) {
      return rope(at, head_dim, positions, Table(cosine), Table(sine));
    };
    expect_table(y, rotated(Table(x)), kRowsTolerance, "rope");
    const Rows dy = Rows::random(5, 3 * head_dim, 2);
    Rows dx = dy;
    ops().rope(dx.view(), head_dim, positions, tables, RopeDirection::kBackward);
    const Table weights(dy);
    expect_table(
        dx,
        difference_gradient(Table(x), [&](const Table& at) { return dot(rotated(at), weights); }),
        kRowsGradientTolerance, "rope backward");
  }
}

TEST_P(RowsTest, SwigluAndItsGradientsAgree) {
  for (const std::int64_t width : {1, 16, 45}) {
    Rows gate = Rows::random(4, width, 1, 3.0F, 1);
    gate.at(0, 0) = -100.0F;
    gate.at(1, 0) = 100.0F;
    const Rows up = Rows::random(4, width, 2, 1.0F, 2);
    const Rows dout = Rows::random(4, width, 3);
    Rows out(4, width, 3);
    ops().swiglu(gate.view(), up.view(), out.view());
    expect_table(out, swiglu(Table(gate), Table(up)), kRowsTolerance, "swiglu");
    const Table weights(dout);
    const Table dgate_expected = difference_gradient(
        Table(gate), [&](const Table& at) { return dot(swiglu(at, Table(up)), weights); });
    const Table dup_expected = difference_gradient(
        Table(up), [&](const Table& at) { return dot(swiglu(Table(gate), at), weights); });
    Rows dgate = gate;
    Rows dup = up;
    ops().swiglu_backward(dout.view(), dgate.view(), dup.view(), dgate.view(), dup.view());
    expect_table(dgate, dgate_expected, kRowsGradientTolerance, "dgate");
    expect_table(dup, dup_expected, kRowsGradientTolerance, "dup");
  }
}

TEST_P(RowsTest, AddScaledAdds) {
  const Rows x = Rows::random(3, 37, 1, 1.0F, 1);
  const Rows before = Rows::random(3, 37, 2, 1.0F, 2);
  Rows y = before;
  ops().add_scaled(x.view(), -0.75F, y.view());
  Table expected(before);
  for (std::int64_t t = 0; t < 3; ++t) {
    for (std::int64_t j = 0; j < 37; ++j) {
      expected(t, j) -= 0.75 * x.at(t, j);
    }
  }
  expect_table(y, expected, kRowsTolerance, "add_scaled");
}

TEST_P(RowsTest, ScaleColumnsAndItsGradientAgree) {
  const Rows x = Rows::random(3, 37, 1, 1.0F, 1);
  const Rows factors = Rows::random(1, 37, 2);
  const Rows bias = Rows::random(1, 37, 5);
  const Rows before = Rows::random(3, 37, 3, 1.0F, 2);
  const Rows dfactors_before = Rows::random(1, 37, 4);
  Rows sum = before;
  Rows product = x;
  Rows dfactors = dfactors_before;
  ops().scale_columns(x.view(), factors.span(), bias.span(), Store::kAdd, sum.view());
  ops().scale_columns(product.view(), factors.span(), {}, Store::kOverwrite, product.view());
  ops().scale_columns_backward(before.view(), x.view(), dfactors.span());
  Table expected_sum(before);
  Table expected_product(before);
  Table expected_dfactors(dfactors_before);
  for (std::int64_t t = 0; t < 3; ++t) {
    for (std::int64_t j = 0; j < 37; ++j) {
      expected_product(t, j) = double{x.at(t, j)} * double{factors.at(0, j)};
      expected_sum(t, j) += expected_product(t, j) + double{bias.at(0, j)};
      expected_dfactors(0, j) += double{before.at(t, j)} * double{x.at(t, j)};
    }
  }
  expect_table(sum, expected_sum, kRowsTolerance, "scale_columns added");
  expect_table(product, expected_product, kRowsTolerance, "scale_columns in place");
  expect_table(dfactors, expected_dfactors, kRowsTolerance, "scale_columns_backward");
}

TEST_P(RowsTest, LogSoftmaxAgreesWithDoublePrecision) {
  for (const std::int64_t vocabulary : {1, 2, 16, 29, 1000, 40000}) {
    for (const float inverse : {1.0F, 0.5F, 1.7F}) {
      const Rows logits = Rows::random(4, vocabulary, 1, 4.0F, 2);
      const std::vector<std::int32_t> targets = {0, static_cast<std::int32_t>(vocabulary - 1), -1,
                                                 static_cast<std::int32_t>(vocabulary / 2)};
      Rows logprobs(1, 4);
      Rows entropies(1, 4);
      ops().log_softmax_gather(logits.view(), targets, inverse, logprobs.span(), entropies.span());
      for (std::int64_t t = 0; t < 4; ++t) {
        const std::int32_t target = targets[static_cast<std::size_t>(t)];
        if (target < 0) {
          EXPECT_EQ(logprobs.at(0, t), 0.0F);
          EXPECT_EQ(entropies.at(0, t), 0.0F);
          continue;
        }
        const TokenLoss expected = token_loss(Table(logits), t, target, double{inverse});
        expect_close(logprobs.at(0, t), expected.logprob, kRowsTolerance,
                     1.0 + std::abs(expected.logprob), "logprob");
        expect_close(entropies.at(0, t), expected.entropy, kRowsTolerance, 1.0 + expected.entropy,
                     "entropy");
      }
      Rows without(1, 4);
      ops().log_softmax_gather(logits.view(), targets, inverse, without.span(), {});
      expect_same_bits(without, logprobs, "without entropies");
    }
  }
}

TEST_P(RowsTest, ALogitOfMinusInfinityHasZeroProbability) {
  Rows logits = Rows::random(1, 20, 1);
  logits.at(0, 7) = -std::numeric_limits<float>::infinity();
  const std::vector<std::int32_t> targets = {3};
  Rows logprobs(1, 1);
  Rows entropies(1, 1);
  ops().log_softmax_gather(logits.view(), targets, 1.0F, logprobs.span(), entropies.span());
  EXPECT_TRUE(std::isfinite(logprobs.at(0, 0)));
  EXPECT_TRUE(std::isfinite(entropies.at(0, 0)));
  const std::vector<float> ones = {1.0F};
  ops().log_softmax_backward(logits.view(), targets, 1.0F, ones, ones);
  EXPECT_EQ(logits.at(0, 7), 0.0F);
  for (std::int64_t v = 0; v < 20; ++v) {
    EXPECT_TRUE(std::isfinite(logits.at(0, v))) << v;
  }
}

// The lanes after the last column hold zeros, which must not count as logits.
TEST_P(RowsTest, EqualLogitsFarBelowZeroAreUniform) {
  constexpr std::int64_t kVocabulary = 37;  // no multiple of the lanes of any instruction set
  constexpr std::int32_t kTarget = 36;
  Rows logits(1, kVocabulary);
  for (std::int64_t v = 0; v < kVocabulary; ++v) {
    logits.at(0, v) = -200.0F;  // exp(-200) is 0
  }
  const std::vector<std::int32_t> targets = {kTarget};
  Rows logprobs(1, 1);
  Rows entropies(1, 1);
  ops().log_softmax_gather(logits.view(), targets, 1.0F, logprobs.span(), entropies.span());
  const double expected = std::log(static_cast<double>(kVocabulary));
  expect_close(logprobs.at(0, 0), -expected, kRowsTolerance, 1.0 + expected, "logprob");
  expect_close(entropies.at(0, 0), expected, kRowsTolerance, 1.0 + expected, "entropy");
  const std::vector<float> ones = {1.0F};
  ops().log_softmax_backward(logits.view(), targets, 1.0F, ones, ones);
  for (std::int64_t v = 0; v < kVocabulary; ++v) {
    // The entropy is at its maximum, so it adds nothing.
    const double gradient = (v == kTarget ? 1.0 : 0.0) - 1.0 / kVocabulary;
    expect_close(logits.at(0, v), gradient, kRowsGradientTolerance, 1.0,
                 "gradient " + std::to_string(v));
  }
}

TEST_P(RowsTest, LogSoftmaxGradientsAgreeWithDifferences) {
  for (const std::int64_t vocabulary : {2, 16, 53}) {
    for (const float inverse : {1.0F, 0.6F}) {
      const Rows logits = Rows::random(4, vocabulary, 1, 2.0F, 3);
      const std::vector<std::int32_t> targets = {1, -1, 0,
                                                 static_cast<std::int32_t>(vocabulary - 1)};
      const Rows dlogprobs = Rows::random(1, 4, 2);
      const Rows dentropies = Rows::random(1, 4, 3);
      for (const bool with_entropy : {false, true}) {
        const Table expected = difference_gradient(Table(logits), [&](const Table& at) {
          double loss = 0.0;
          for (std::int64_t t = 0; t < 4; ++t) {
            const std::int32_t target = targets[static_cast<std::size_t>(t)];
            if (target >= 0) {
              const TokenLoss token = token_loss(at, t, target, double{inverse});
              loss += dlogprobs.at(0, t) * token.logprob;
              loss += with_entropy ? dentropies.at(0, t) * token.entropy : 0.0;
            }
          }
          return loss;
        });
        Rows gradient = logits;
        ops().log_softmax_backward(gradient.view(), targets, inverse, dlogprobs.span(),
                                   with_entropy ? dentropies.span() : std::span<const float>());
        expect_table(gradient, expected, kRowsGradientTolerance, "dlogits");
        for (std::int64_t v = 0; v < vocabulary; ++v) {
          EXPECT_EQ(gradient.at(1, v), 0.0F);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, RowsTest, ::testing::ValuesIn(backends()), backend_name);

}  // namespace
}  // namespace tidemill::engines::ops_test
