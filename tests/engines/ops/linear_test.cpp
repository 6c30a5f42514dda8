// SPDX-License-Identifier: Apache-2.0
// Compares linear layers with double precision.
#include <array>
#include <cmath>

#include "base/tensor/block_int8.hpp"
#include "base/tensor/block_nf4.hpp"
#include "base/tensor/float_tensor.hpp"
#include "tests/engines/ops/fixtures.hpp"
#include "tests/engines/ops/oracle.hpp"

namespace tidemill::engines::ops_test {
namespace {

// A chain of n multiply-adds has an error of at most n half-units. Errors cancel like a random
// walk, so this tolerance, relative to the sum of the absolute terms, is far above the error of a
// correct kernel.
constexpr double kTolerance = 2e-6;

struct Shape {
  std::int64_t rows;
  std::int64_t in;
  std::int64_t out;
};

const Shape kShapes[] = {{1, 1, 1},     {1, 64, 64},   {2, 7, 5},     {3, 16, 33},   {5, 100, 17},
                         {13, 31, 48},  {64, 128, 96}, {130, 65, 40}, {7, 300, 129}, {200, 96, 8},
                         {1, 344, 128}, {33, 8, 70},   {140, 40, 90}};

std::string name(const Shape& shape, DType dtype) {
  return std::to_string(shape.rows) + " x " + std::to_string(shape.in) + " x " +
         std::to_string(shape.out) + " " + std::string(dtype_name(dtype));
}

float rounded(float x, DType dtype) {
  return dtype == DType::kBF16 ? bf16_to_float(float_to_bf16(x)) : x;
}

Rows rounded(const Rows& x, DType dtype) {
  Rows out(x.rows(), x.cols());
  for (std::int64_t t = 0; t < x.rows(); ++t) {
    for (std::int64_t j = 0; j < x.cols(); ++j) {
      out.at(t, j) = rounded(x.at(t, j), dtype);
    }
  }
  return out;
}

// Returns the values of weights after quantization to blocks.
Rows quantized(const Rows& w) {
  constexpr std::int64_t kBlock = BlockI8::kElements;
  Rows out(w.rows(), w.cols());
  for (std::int64_t o = 0; o < w.rows(); ++o) {
    for (std::int64_t first = 0; first < w.cols(); first += kBlock) {
      std::array<float, BlockI8::kElements> values{};
      std::copy_n(w.view().row(o) + first, kBlock, values.begin());
      const BlockI8 block = quantize_block(values);
      for (std::int64_t i = 0; i < kBlock; ++i) {
        out.at(o, first + i) = block_element(&block, i);
      }
    }
  }
  return out;
}

// Returns rows of x rounded as a product with block int8 rounds them.
Rows rounded_to_blocks(const Rows& x) {
  constexpr std::int64_t kBlock = BlockI8::kElements;
  Rows out(x.rows(), x.cols());
  for (std::int64_t t = 0; t < x.rows(); ++t) {
    for (std::int64_t first = 0; first < x.cols(); first += kBlock) {
      float max_abs = 0.0F;
      for (std::int64_t i = 0; i < kBlock; ++i) {
        max_abs = std::max(max_abs, std::abs(x.at(t, first + i)));
      }
      const float scale = max_abs / 127.0F;
      for (std::int64_t i = 0; i < kBlock; ++i) {
        const float whole =
            max_abs > 0.0F ? std::nearbyint(x.at(t, first + i) * (1.0F / scale)) : 0.0F;
        out.at(t, first + i) = whole * scale;
      }
    }
  }
  return out;
}

// Compares y with before + x w^T + bias, element by element.
void expect_product(const Rows& y, const Rows& before, const Rows& x, const Rows& w,
                    const Rows& bias, bool transposed, const std::string& what) {
  for (std::int64_t t = 0; t < y.rows(); ++t) {
    for (std::int64_t o = 0; o < y.cols(); ++o) {
      double expected = before.at(t, o) + (bias.rows() > 0 ? double{bias.at(0, o)} : 0.0);
      double scale = std::abs(expected) + 1e-3;
      for (std::int64_t k = 0; k < x.cols(); ++k) {
        const double term = double{x.at(t, k)} * (transposed ? w.at(k, o) : w.at(o, k));
        expected += term;
        scale += std::abs(term);
      }
      expect_close(y.at(t, o), expected, kTolerance, scale, what);
      if (::testing::Test::HasFatalFailure()) {
        return;
      }
    }
  }
}

void check_products(Ops& ops, DType dtype) {
  for (const Shape& shape : kShapes) {
    const std::string what = name(shape, dtype);
    const Rows w = Rows::random(shape.out, shape.in, 1, 0.2F);
    const Rows x = Rows::random(shape.rows, shape.in, 2, 1.0F, 3);
    const Rows dy = Rows::random(shape.rows, shape.out, 3, 1.0F, 5);
    const Rows bias = Rows::random(1, shape.out, 4);
    const Rows w_used = rounded(w, dtype);
    const auto weight =
        ops.prepare_weight(f32_weight(w), dtype, WeightUse::kForwardAndBackward).value();
    EXPECT_EQ(weight->out_features(), shape.out);
    EXPECT_EQ(weight->in_features(), shape.in);
    EXPECT_GE(weight->size_bytes(),
              shape.in * shape.out * static_cast<std::int64_t>(dtype_bytes(dtype)));
    for (const Store store : {Store::kOverwrite, Store::kAdd}) {
      const bool add = store == Store::kAdd;
      const Rows y_before = Rows::random(shape.rows, shape.out, 5, 1.0F, 2);
      Rows y = y_before;
      ops.linear(x.view(), *weight, add ? std::span<const float>() : bias.span(), store, y.view());
      expect_product(y, add ? y_before : Rows(shape.rows, shape.out), rounded(x, dtype), w_used,
                     add ? Rows() : bias, false, what + " forward");
      const Rows dx_before = Rows::random(shape.rows, shape.in, 6, 1.0F, 1);
      Rows dx = dx_before;
      ops.linear_backward_input(dy.view(), *weight, store, dx.view());
      expect_product(dx, add ? dx_before : Rows(shape.rows, shape.in), rounded(dy, dtype), w_used,
                     Rows(), true, what + " backward");
      if (::testing::Test::HasFatalFailure()) {
        return;
      }
    }
  }
}

class LinearTest : public OpsTest {};

TEST_P(LinearTest, F32ProductsAgreeWithDoublePrecision) {
  check_products(ops(), DType::kF32);
}

TEST_P(LinearTest, Bf16ProductsRoundTheirOperandsAndNothingElse) {
  check_products(ops(), DType::kBF16);
}

TEST_P(LinearTest, Int8ProductsRoundRowsToBlocksAndNothingElse) {
  for (const Shape& shape : {Shape{1, 32, 1},
                             {1, 256, 70},
                             {2, 64, 16},
                             {5, 96, 33},
                             {7, 320, 129},
                             {64, 128, 96},
                             {200, 64, 48}}) {
    const std::string what = name(shape, DType::kBlockI8);
    Rows x = Rows::random(shape.rows, shape.in, 2, 1.0F, 3);
    std::fill_n(x.view().row(0), 32, 0.0F);  // a block without a scale
    const Rows w = Rows::random(shape.out, shape.in, 1, 0.2F);
    const Rows dy = Rows::random(shape.rows, shape.out, 3, 1.0F, 5);
    const Rows bias = Rows::random(1, shape.out, 4);
    const auto weight =
        ops()
            .prepare_weight(f32_weight(w), DType::kBlockI8, WeightUse::kForwardAndBackward)
            .value();
    const Rows y_before = Rows::random(shape.rows, shape.out, 5, 1.0F, 2);
    Rows y = y_before;
    ops().linear(x.view(), *weight, bias.span(), Store::kAdd, y.view());
    expect_product(y, y_before, rounded_to_blocks(x), quantized(w), bias, false, what);
    Rows dx(shape.rows, shape.in, 1);
    ops().linear_backward_input(dy.view(), *weight, Store::kOverwrite, dx.view());
    expect_product(dx, Rows(shape.rows, shape.in), dy, quantized(w), Rows(), true, what);
    ASSERT_FALSE(::testing::Test::HasFatalFailure());
  }
}

// Blocks from a file are used unchanged. They give the same bits as blocks quantized here.
TEST_P(LinearTest, BlocksOfAFileAreKept) {
  const Rows w = Rows::random(24, 96, 1, 0.2F);
  const Rows x = Rows::random(9, 96, 2);
  std::vector<BlockI8> blocks;
  for (std::int64_t o = 0; o < w.rows(); ++o) {
    for (std::int64_t first = 0; first < w.cols(); first += 32) {
      std::array<float, BlockI8::kElements> values{};
      std::copy_n(w.view().row(o) + first, 32, values.begin());
      blocks.push_back(quantize_block(values));
    }
  }
  const auto made =
      ops().prepare_weight(f32_weight(w), DType::kBlockI8, WeightUse::kForward).value();
  const auto taken = ops()
                         .prepare_weight({blocks.data(), DType::kBlockI8, 24, 96}, DType::kBlockI8,
                                         WeightUse::kForward)
                         .value();
  Rows from_made(9, 24);
  Rows from_taken(9, 24);
  ops().linear(x.view(), *made, {}, Store::kOverwrite, from_made.view());
  ops().linear(x.view(), *taken, {}, Store::kOverwrite, from_taken.view());
  expect_same_bits(from_taken, from_made, "blocks");
}

// A weight that reuses the memory of another gives the same bits as in fresh memory.
TEST_P(LinearTest, AReplacedWeightHasNoEffect) {
  const Rows x = Rows::random(9, 64, 2);
  const Rows dy = Rows::random(9, 70, 3);
  const Rows w = Rows::random(70, 64, 1, 0.2F);
  const auto use = WeightUse::kForwardAndBackward;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kBlockI8, DType::kNf4}) {
    const auto fresh = ops().prepare_weight(f32_weight(w), dtype, use).value();
    Rows y(9, 70);
    Rows dx(9, 64);
    ops().linear(x.view(), *fresh, {}, Store::kOverwrite, y.view());
    ops().linear_backward_input(dy.view(), *fresh, Store::kOverwrite, dx.view());
    for (const auto& [out, in] : {std::pair{70, 64}, std::pair{64, 80}, std::pair{80, 128}}) {
      const std::string what = std::string(dtype_name(dtype)) + " after " + std::to_string(out) +
                               " x " + std::to_string(in);
      const bool blocks = dtype == DType::kBlockI8 || dtype == DType::kNf4;
      Rows before = Rows::random(out, blocks ? in / 64 * 64 : in, 5, 4.0F);
      auto weight = ops().prepare_weight(f32_weight(before), dtype, use).value();
      weight = ops().replace_weight(std::move(weight), f32_weight(w), dtype, use).value();
      EXPECT_EQ(weight->seen_finite(), fresh->seen_finite()) << what;
      Rows again(9, 70);
      Rows dx_again(9, 64);
      ops().linear(x.view(), *weight, {}, Store::kOverwrite, again.view());
      ops().linear_backward_input(dy.view(), *weight, Store::kOverwrite, dx_again.view());
      expect_same_bits(again, y, what);
      expect_same_bits(dx_again, dx, what);
    }
  }
}

TEST_P(LinearTest, Int8RejectsWeightsThatBlocksCannotHold) {
  Rows w = Rows::random(8, 48, 1);
  const auto refusal = [&](const Rows& weight) {
    return ops()
        .prepare_weight(f32_weight(weight), DType::kBlockI8, WeightUse::kForward)
        .status()
        .message();
  };
  EXPECT_EQ(refusal(w), "rows of 48 weights do not divide into blocks of 32 for int8");
  w = Rows::random(8, 64, 1);
  w.at(2, 5) = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(refusal(w), "element 133 is not finite or too large for a block of int8");
  w.at(2, 5) = 9e6F;
  EXPECT_EQ(refusal(w), "element 133 is not finite or too large for a block of int8");
}

TEST_P(LinearTest, Int8PropagatesNonFiniteInputs) {
  const Rows w = Rows::random(20, 64, 1);
  const auto weight =
      ops().prepare_weight(f32_weight(w), DType::kBlockI8, WeightUse::kForward).value();
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Rows x = Rows::random(2, 64, 2);
    x.at(0, 40) = bad;
    Rows y(2, 20);
    ops().linear(x.view(), *weight, {}, Store::kOverwrite, y.view());
    for (std::int64_t o = 0; o < 20; ++o) {
      EXPECT_FALSE(std::isfinite(y.at(0, o)));
      EXPECT_TRUE(std::isfinite(y.at(1, o)));
    }
  }
}

// Returns the bfloat16 weight that `w` in NF4 represents.
Rows nf4_as_bf16(const Rows& w) {
  std::vector<float> values;
  for (std::int64_t o = 0; o < w.rows(); ++o) {
    values.insert(values.end(), w.view().row(o), w.view().row(o) + w.cols());
  }
  const Tensor tensor =
      quantize_nf4(make_float_tensor(values, {w.rows(), w.cols()}, DType::kF32), "w").value();
  widen_floats(tensor, values);
  Rows out(w.rows(), w.cols());
  for (std::int64_t o = 0; o < w.rows(); ++o) {
    for (std::int64_t i = 0; i < w.cols(); ++i) {
      out.at(o, i) = rounded(values[static_cast<std::size_t>(o * w.cols() + i)], DType::kBF16);
    }
  }
  return out;
}

// Compares bits, without a tolerance: NF4 is a way to store a bfloat16 weight. The shapes include
// more than one group of 256 blocks, rows that begin inside a group, and weights whose panels are
// not all expanded at once.
TEST_P(LinearTest, Nf4ProductsHaveTheBitsOfTheBf16WeightTheyRepresent) {
  for (const Shape& shape : {Shape{1, 64, 1},
                             {1, 256, 70},
                             {2, 64, 16},
                             {5, 192, 33},
                             {3, 320, 129},
                             {64, 128, 96},
                             {9, 64, 600},
                             {1, 2816, 80},
                             {40, 2816, 40}}) {
    const std::string what = name(shape, DType::kNf4);
    Rows w = Rows::random(shape.out, shape.in, 1, 0.2F);
    std::fill_n(w.view().row(0), 64, 0.0F);  // a block without a scale
    const Rows x = Rows::random(shape.rows, shape.in, 2, 1.0F, 3);
    const Rows dy = Rows::random(shape.rows, shape.out, 3, 1.0F, 5);
    const Rows bias = Rows::random(1, shape.out, 4);
    const auto use = WeightUse::kForwardAndBackward;
    const auto nf4 = ops().prepare_weight(f32_weight(w), DType::kNf4, use).value();
    const auto bf16 = ops().prepare_weight(f32_weight(nf4_as_bf16(w)), DType::kBF16, use).value();
    EXPECT_EQ(nf4->in_features(), shape.in);
    EXPECT_EQ(nf4->out_features(), shape.out);
    for (const Store store : {Store::kOverwrite, Store::kAdd}) {
      Rows y = Rows::random(shape.rows, shape.out, 5, 1.0F, 2);
      Rows expected_y = y;
      ops().linear(x.view(), *nf4, bias.span(), store, y.view());
      ops().linear(x.view(), *bf16, bias.span(), store, expected_y.view());
      expect_same_bits(y, expected_y, what + " forward");
      Rows dx = Rows::random(shape.rows, shape.in, 6, 1.0F, 1);
      Rows expected_dx = dx;
      ops().linear_backward_input(dy.view(), *nf4, store, dx.view());
      ops().linear_backward_input(dy.view(), *bf16, store, expected_dx.view());
      expect_same_bits(dx, expected_dx, what + " backward");
      ASSERT_FALSE(::testing::Test::HasFatalFailure());
    }
  }
}

// NF4 from a file is used unchanged. It gives the same bits as NF4 quantized here.
TEST_P(LinearTest, Nf4OfAFileIsKept) {
  const Rows w = Rows::random(24, 128, 1, 0.2F);
  const Rows x = Rows::random(9, 128, 2);
  std::vector<float> values;
  for (std::int64_t o = 0; o < w.rows(); ++o) {
    values.insert(values.end(), w.view().row(o), w.view().row(o) + w.cols());
  }
  const Tensor file = quantize_nf4(make_float_tensor(values, {24, 128}, DType::kF32), "w").value();
  const WeightView view{file.data.bytes().data(), DType::kNf4, 24, 128};
  const auto made = ops().prepare_weight(f32_weight(w), DType::kNf4, WeightUse::kForward).value();
  const auto taken = ops().prepare_weight(view, DType::kNf4, WeightUse::kForward).value();
  const auto rounded = ops().prepare_weight(view, DType::kBF16, WeightUse::kForward).value();
  Rows from_made(9, 24);
  Rows from_taken(9, 24);
  Rows from_rounded(9, 24);
  ops().linear(x.view(), *made, {}, Store::kOverwrite, from_made.view());
  ops().linear(x.view(), *taken, {}, Store::kOverwrite, from_taken.view());
  ops().linear(x.view(), *rounded, {}, Store::kOverwrite, from_rounded.view());
  expect_same_bits(from_taken, from_made, "taken");
  expect_same_bits(from_rounded, from_made, "rounded to bfloat16 by the backend");
  // As an embedding table, it is widened exactly.
  widen_floats(file, values);
  const std::vector<std::int32_t> ids{23, 0, 7};
  Rows rows(3, 128);
  ops().embed(ids, view, rows.view());
  for (std::int64_t t = 0; t < 3; ++t) {
    for (std::int64_t i = 0; i < 128; ++i) {
      EXPECT_EQ(rows.at(t, i),
                values[static_cast<std::size_t>(ids[static_cast<std::size_t>(t)] * 128 + i)]);
    }
  }
}

TEST_P(LinearTest, Nf4RejectsWeightsThatBlocksCannotHold) {
  Rows w = Rows::random(8, 96, 1);
  const auto refusal = [&](const Rows& weight) {
    return ops()
        .prepare_weight(f32_weight(weight), DType::kNf4, WeightUse::kForward)
        .status()
        .message();
  };
  EXPECT_EQ(refusal(w), "rows of 96 weights do not divide into blocks of 64 for nf4");
  w = Rows::random(8, 64, 1);
  w.at(2, 5) = std::numeric_limits<float>::infinity();
  EXPECT_EQ(refusal(w), "element 133 is not finite or too large for a block of nf4");
  w.at(2, 5) = 2e38F;
  EXPECT_EQ(refusal(w), "element 133 is not finite or too large for a block of nf4");
}

TEST_P(LinearTest, Nf4PropagatesNaN) {
  const Rows w = Rows::random(20, 64, 1);
  const auto weight = ops().prepare_weight(f32_weight(w), DType::kNf4, WeightUse::kForward).value();
  Rows x = Rows::random(2, 64, 2);
  x.at(0, 40) = std::numeric_limits<float>::quiet_NaN();
  Rows y(2, 20);
  ops().linear(x.view(), *weight, {}, Store::kOverwrite, y.view());
  for (std::int64_t o = 0; o < 20; ++o) {
    EXPECT_FALSE(std::isfinite(y.at(0, o)));
    EXPECT_TRUE(std::isfinite(y.at(1, o)));
  }
}

TEST_P(LinearTest, WeightGradientsAddToTheDestination) {
  for (const Shape& shape : kShapes) {
    const Rows x = Rows::random(shape.rows, shape.in, 1, 1.0F, 2);
    const Rows dy = Rows::random(shape.rows, shape.out, 2, 1.0F, 1);
    const Rows before = Rows::random(shape.out, shape.in, 3, 1.0F, 4);
    const Rows bias_before = Rows::random(1, shape.out, 4);
    Rows dw = before;
    Rows dbias = bias_before;
    ops().linear_backward_weight(dy.view(), x.view(), dw.view());
    ops().bias_backward(dy.view(), dbias.span());
    for (std::int64_t o = 0; o < shape.out; ++o) {
      double bias = bias_before.at(0, o);
      double bias_scale = std::abs(bias);
      for (std::int64_t t = 0; t < shape.rows; ++t) {
        bias += dy.at(t, o);
        bias_scale += std::abs(dy.at(t, o));
      }
      expect_close(dbias.at(0, o), bias, kTolerance, bias_scale, "bias");
      for (std::int64_t i = 0; i < shape.in; ++i) {
        double expected = before.at(o, i);
        double scale = std::abs(expected);
        for (std::int64_t t = 0; t < shape.rows; ++t) {
          expected += double{dy.at(t, o)} * double{x.at(t, i)};
          scale += std::abs(double{dy.at(t, o)} * double{x.at(t, i)});
        }
        expect_close(dw.at(o, i), expected, kTolerance, scale, name(shape, DType::kF32));
        ASSERT_FALSE(::testing::Test::HasFatalFailure());
      }
    }
  }
}

TEST_P(LinearTest, SixteenBitFilesAreWidenedExactly) {
  constexpr std::int64_t kOut = 19;
  constexpr std::int64_t kIn = 21;
  const Rows w = Rows::random(kOut, kIn, 1);
  const Rows x = Rows::random(9, kIn, 2);
  for (const DType stored : {DType::kF16, DType::kBF16}) {
    std::vector<std::uint16_t> bits;
    Rows widened(kOut, kIn);
    for (std::int64_t o = 0; o < kOut; ++o) {
      for (std::int64_t i = 0; i < kIn; ++i) {
        const bool half = stored == DType::kF16;
        bits.push_back(half ? float_to_f16(w.at(o, i)) : float_to_bf16(w.at(o, i)));
        widened.at(o, i) = half ? f16_to_float(bits.back()) : bf16_to_float(bits.back());
      }
    }
    for (const DType compute : {DType::kF32, DType::kBF16}) {
      const auto from_file =
          ops().prepare_weight({bits.data(), stored, kOut, kIn}, compute, WeightUse::kForward);
      const auto from_f32 = ops().prepare_weight(f32_weight(widened), compute, WeightUse::kForward);
      Rows a(9, kOut);
      Rows b(9, kOut);
      ops().linear(x.view(), *from_file.value(), {}, Store::kOverwrite, a.view());
      ops().linear(x.view(), *from_f32.value(), {}, Store::kOverwrite, b.view());
      expect_same_bits(a, b, std::string(dtype_name(stored)));
    }
  }
}

// The bits of elements that are not finite: both infinities, and the NaN closest to infinity.
struct NotFiniteBits {
  DType dtype;
  std::array<std::uint32_t, 3> elements;
};

TEST_P(LinearTest, PreparingDetectsNonFiniteElements) {
  constexpr std::int64_t kOut = 35;
  constexpr std::int64_t kIn = 69;
  const Rows w = Rows::random(kOut, kIn, 1);
  const std::vector<float> values(w.view().data, w.view().data + kOut * kIn);
  for (const NotFiniteBits& bits :
       {NotFiniteBits{DType::kF32, {0x7F800000U, 0xFF800000U, 0x7F800001U}},
        NotFiniteBits{DType::kF16, {0x7C00U, 0xFC00U, 0x7C01U}},
        NotFiniteBits{DType::kBF16, {0x7F80U, 0xFF80U, 0x7F81U}}}) {
    const Tensor tensor = make_float_tensor(values, {kOut, kIn}, bits.dtype);
    const std::size_t size = dtype_bytes(bits.dtype);
    for (const DType compute : {DType::kF32, DType::kBF16}) {
      std::vector<std::byte> bytes(tensor.data.bytes().begin(), tensor.data.bytes().end());
      const auto seen_finite = [&] {
        const WeightView view{bytes.data(), bits.dtype, kOut, kIn};
        return ops().prepare_weight(view, compute, WeightUse::kForward).value()->seen_finite();
      };
      EXPECT_EQ(seen_finite(), GetParam().name != "reference") << dtype_name(bits.dtype);
      for (std::size_t i = 0; i < kOut * kIn; ++i) {
        std::memcpy(bytes.data() + i * size, &bits.elements[i % 3], size);
        ASSERT_FALSE(seen_finite()) << dtype_name(bits.dtype) << " element " << i;
        std::memcpy(bytes.data() + i * size, tensor.data.bytes().data() + i * size, size);
      }
    }
  }
}

TEST_P(LinearTest, BlocksAreWidenedExactly) {
  constexpr std::int64_t kOut = 19;
  constexpr std::int64_t kIn = 96;
  const Rows w = Rows::random(kOut, kIn, 1);
  const Rows x = Rows::random(9, kIn, 2);
  const Rows dy = Rows::random(9, kOut, 3);
  std::vector<float> values;
  for (std::int64_t i = 0; i < kOut * kIn; ++i) {
    values.push_back(w.at(i / kIn, i % kIn));
  }
  const Tensor blocks =
      quantize_blocks(make_float_tensor(values, {kOut, kIn}, DType::kF32), "w").value();
  widen_floats(blocks, values);
  Rows widened(kOut, kIn);
  for (std::int64_t i = 0; i < kOut * kIn; ++i) {
    widened.at(i / kIn, i % kIn) = values[static_cast<std::size_t>(i)];
  }
  const WeightView view{blocks.data.bytes().data(), DType::kBlockI8, kOut, kIn};
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    const auto use = WeightUse::kForwardAndBackward;
    const auto from_file = ops().prepare_weight(view, compute, use);
    const auto from_f32 = ops().prepare_weight(f32_weight(widened), compute, use);
    ASSERT_TRUE(from_file.ok()) << from_file.status().to_string();
    Rows a(9, kOut);
    Rows b(9, kOut);
    ops().linear(x.view(), *from_file.value(), {}, Store::kOverwrite, a.view());
    ops().linear(x.view(), *from_f32.value(), {}, Store::kOverwrite, b.view());
    expect_same_bits(a, b, "forward");
    Rows da(9, kIn);
    Rows db(9, kIn);
    ops().linear_backward_input(dy.view(), *from_file.value(), Store::kOverwrite, da.view());
    ops().linear_backward_input(dy.view(), *from_f32.value(), Store::kOverwrite, db.view());
    expect_same_bits(da, db, "backward");
  }
  const std::vector<std::int32_t> ids{18, 0, 7, 0};
  Rows rows(4, kIn);
  Rows wide_rows(4, kIn);
  ops().embed(ids, view, rows.view());
  ops().embed(ids, f32_weight(widened), wide_rows.view());
  expect_same_bits(rows, wide_rows, "table");
}

TEST_P(LinearTest, AcceptsBatchesWithoutRows) {
  const Rows w = Rows::random(8, 4, 1);
  const auto weight =
      ops().prepare_weight(f32_weight(w), DType::kF32, WeightUse::kForwardAndBackward).value();
  Rows y(0, 8);
  Rows x(0, 4);
  Rows dw(8, 4);
  ops().linear(x.view(), *weight, {}, Store::kOverwrite, y.view());
  ops().linear_backward_input(y.view(), *weight, Store::kAdd, x.view());
  ops().linear_backward_weight(y.view(), x.view(), dw.view());
  expect_same_bits(dw, Rows(8, 4), "dw");
}

TEST_P(LinearTest, RejectsOtherTypes) {
  const Rows w = Rows::random(8, 4, 1);
  WeightView view = f32_weight(w);
  EXPECT_EQ(ops().prepare_weight(view, DType::kF16, WeightUse::kForward).status().code(),
            Errc::kUnimplemented);
  view.dtype = DType::kF64;
  EXPECT_EQ(ops().prepare_weight(view, DType::kF32, WeightUse::kForward).status().code(),
            Errc::kUnimplemented);
}

INSTANTIATE_TEST_SUITE_P(Backends, LinearTest, ::testing::ValuesIn(backends()), backend_name);

}  // namespace
}  // namespace tidemill::engines::ops_test
