// SPDX-License-Identifier: Apache-2.0
// DoRA over bases in every type: initial magnitudes, outputs and gradients compared with plain
// loops over the weights that the backend represents.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"
#include "base/tensor/block_int8.hpp"
#include "base/tensor/block_nf4.hpp"
#include "base/tensor/float_tensor.hpp"
#include "engines/peft/adapter_spec.hpp"
#include "engines/peft/linear_bypass.hpp"
#include "tests/engines/ops/device_values.hpp"
#include "tests/engines/transformer/backends.hpp"

namespace tidemill::engines {
namespace {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

// Large enough for two groups of NF4 blocks.
constexpr std::int64_t kRows = 160;
constexpr std::int64_t kDepth = 128;
constexpr std::int64_t kRank = 3;
constexpr std::int64_t kTokens = 4;
constexpr float kScale = 0.5F;
const std::string kLayer = "model.layers.0.mlp.up_proj";

struct DoraCase {
  Backend backend;
  DType stored;
  DType compute;
};

std::ostream& operator<<(std::ostream& out, const DoraCase& c) {
  return out << c.backend << "_" << dtype_name(c.stored) << "_in_" << dtype_name(c.compute);
}

std::vector<DoraCase> dora_cases() {
  std::vector<DoraCase> all;
  for (const Backend& backend : backends()) {
    for (const DType compute : {DType::kBlockI8, DType::kNf4}) {
      for (const DType stored : {DType::kF32, DType::kBF16, DType::kBlockI8, DType::kNf4}) {
        all.push_back({backend, stored, compute});
      }
    }
    all.push_back({backend, DType::kF32, DType::kF32});
    all.push_back({backend, DType::kBF16, DType::kF32});
    all.push_back({backend, DType::kBF16, DType::kBF16});
  }
  return all;
}

Tensor random_tensor(std::vector<std::int64_t> shape, double deviation, std::uint64_t seed) {
  RandomStream random(seed);
  Floats values(static_cast<std::size_t>(shape[0] * (shape.size() == 2 ? shape[1] : 1)));
  for (float& value : values) {
    value = static_cast<float>(deviation * random.normal());
  }
  return make_float_tensor(values, std::move(shape), DType::kF32);
}

Tensor as_type(const Tensor& tensor, DType type) {
  if (tensor.dtype == type) {
    return tensor;
  }
  const Tensor wide = to_float_type(tensor, DType::kF32);
  switch (type) {
    case DType::kBlockI8: return quantize_blocks(wide, "w").value();
    case DType::kNf4: return quantize_nf4(wide, "w").value();
    default: return to_float_type(wide, type);
  }
}

// Returns the elements that products in `compute` multiply.
Floats multiplied(const Tensor& stored, DType compute) {
  const Tensor laid_out = as_type(stored, compute);
  return float_values(compute == DType::kNf4 ? to_float_type(laid_out, DType::kBF16) : laid_out);
}

Floats norms_of(const Floats& weight) {
  Floats norms;
  for (std::size_t first = 0; first < weight.size(); first += kDepth) {
    double square = 0.0;
    for (std::size_t i = 0; i < kDepth; ++i) {
      square += double{weight[first + i]} * double{weight[first + i]};
    }
    norms.push_back(static_cast<float>(std::sqrt(square)));
  }
  return norms;
}

// Expects equal values up to `relative` of the largest one.
void expect_near(const Floats& actual, const Doubles& expected, double relative) {
  ASSERT_EQ(actual.size(), expected.size());
  double largest = 0.0;
  for (const double value : expected) {
    largest = std::max(largest, std::abs(value));
  }
  ASSERT_GT(largest, 0.0);
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(double{actual[i]}, expected[i], relative * largest) << i;
  }
}

// The output and the gradients of a layer, in double precision. Matrices are row-major.
struct PlainDora {
  Doubles y = Doubles(kTokens * kRows);
  Doubles magnitude = Doubles(kRows);
  Doubles a = Doubles(kRank * kDepth);
  Doubles b = Doubles(kRows * kRank);
  Doubles dx = Doubles(kTokens * kDepth);
};

struct DoraInputs {
  Floats weight;  // as multiplied
  Floats bias;
  Floats magnitude;
  Floats a;
  Floats b;
  Floats x;
  Floats dy;
};

// Computes y = m / |W + s B A| (W + s B A) x + bias and its gradients with the norm held constant.
PlainDora plain_dora(const DoraInputs& in) {
  PlainDora out;
  const double s = double{kScale};
  for (std::size_t o = 0; o < kRows; ++o) {
    Doubles row(kDepth);
    double square = 0.0;
    for (std::size_t i = 0; i < kDepth; ++i) {
      row[i] = double{in.weight[o * kDepth + i]};
      for (std::size_t r = 0; r < kRank; ++r) {
        row[i] += s * double{in.b[o * kRank + r]} * double{in.a[r * kDepth + i]};
      }
      square += row[i] * row[i];
    }
    const double norm = std::sqrt(square);
    const double factor = double{in.magnitude[o]} / norm;
    for (std::size_t t = 0; t < kTokens; ++t) {
      const float* x = &in.x[t * kDepth];
      double product = 0.0;
      for (std::size_t i = 0; i < kDepth; ++i) {
        product += row[i] * double{x[i]};
      }
      out.y[t * kRows + o] = factor * product + double{in.bias[o]};
      const double dy = double{in.dy[t * kRows + o]};
      out.magnitude[o] += dy * product / norm;
      for (std::size_t i = 0; i < kDepth; ++i) {
        out.dx[t * kDepth + i] += dy * factor * row[i];
        for (std::size_t r = 0; r < kRank; ++r) {
          const double b = double{in.b[o * kRank + r]};
          out.b[o * kRank + r] += dy * factor * s * double{in.a[r * kDepth + i]} * double{x[i]};
          out.a[r * kDepth + i] += dy * factor * s * b * double{x[i]};
        }
      }
    }
  }
  return out;
}

class DoraTest : public ::testing::TestWithParam<DoraCase> {
protected:
  DoraTest() {
    module_.magnitude = "m";
    base_[kLayer + ".weight"] = as_type(random_tensor({kRows, kDepth}, 0.1, 1), GetParam().stored);
  }

  [[nodiscard]] const Tensor& stored() const { return base_.at(kLayer + ".weight"); }
  [[nodiscard]] TensorMap new_tensors() const {
    const DType compute = GetParam().compute;
    return init_adapter({module_}, {}, base_, 7, {compute, compute}).value();
  }
  [[nodiscard]] LinearBypass bypass(const TensorMap& tensors) const {
    return LinearBypass::create(module_, tensors, {&stored(), GetParam().compute},
                                WeightUse::kForwardAndBackward, *ops_)
        .value();
  }
  [[nodiscard]] std::unique_ptr<PreparedWeight> prepared() const {
    return ops_
        ->prepare_weight(weight_view(stored()), GetParam().compute, WeightUse::kForwardAndBackward)
        .value();
  }

  // Returns inputs that rounding to bfloat16 and to blocks of int8 leaves as they are: integers up
  // to 127, which every block has.
  [[nodiscard]] static Floats exact_inputs() {
    RandomStream random(5);
    Floats x(kTokens * kDepth);
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = i % 32 == 0 ? 127.0F : static_cast<float>(random.below(255)) - 127.0F;
    }
    return x;
  }

  [[nodiscard]] DeviceValues on_device(const Floats& values, std::int64_t cols) const {
    return {*ops_, std::ssize(values) / cols, cols, values};
  }

  std::shared_ptr<Ops> ops_ = GetParam().backend.make();
  AdaptedModule module_ = lora_module(kLayer, kDepth, kRows, kRank, kScale);
  TensorMap base_;
};

TEST_P(DoraTest, NewMagnitudesAreTheNormsOfTheMultipliedRows) {
  const Floats magnitudes = float_values(new_tensors().at("m"));
  EXPECT_EQ(magnitudes, norms_of(multiplied(stored(), GetParam().compute)));
  const bool quantizes =
      !is_float_type(GetParam().compute) && GetParam().stored != GetParam().compute;
  if (quantizes) {
    EXPECT_NE(magnitudes, norms_of(float_values(stored())));
  } else if (is_float_type(GetParam().compute)) {
    EXPECT_EQ(magnitudes, norms_of(float_values(stored())));
  }
}

TEST_P(DoraTest, ANewAdapterLeavesTheOutputOfTheBase) {
  const auto weight = prepared();
  const DeviceValues x = on_device(exact_inputs(), kDepth);
  const DeviceValues expected(*ops_, kTokens, kRows);
  ops_->linear(x.matrix(), *weight, {}, Store::kOverwrite, expected.matrix());
  const DeviceValues y(*ops_, kTokens, kRows);
  const LinearBypass layer = bypass(new_tensors());
  layer.forward({weight.get(), {}}, x.matrix(), Store::kOverwrite, y.matrix(), *ops_);
  EXPECT_EQ(y.read(), expected.read());
}

TEST_P(DoraTest, OutputAndGradientsAreThoseOfPlainLoops) {
  TensorMap tensors = new_tensors();
  tensors[module_.b] = random_tensor({kRows, kRank}, 0.3, 2);
  tensors["m"] = random_tensor({kRows}, 1.0, 3);
  const DoraInputs in{multiplied(stored(), GetParam().compute),
                      float_values(random_tensor({kRows}, 1.0, 4)),
                      float_values(tensors.at("m")),
                      float_values(tensors.at(module_.a)),
                      float_values(tensors.at(module_.b)),
                      exact_inputs(),
                      float_values(random_tensor({kTokens, kRows}, 1.0, 6))};
  const PlainDora expected = plain_dora(in);

  const LinearBypass layer = bypass(tensors);
  const auto weight = prepared();
  const DeviceValues bias = on_device(in.bias, kRows);
  const DeviceValues x = on_device(in.x, kDepth);
  const BaseLinear base{weight.get(), bias.vector()};
  const DeviceValues y(*ops_, kTokens, kRows);
  layer.forward(base, x.matrix(), Store::kOverwrite, y.matrix(), *ops_);
  // Sums of at most 160 float32 terms.
  constexpr double kRounding = 1e-5;
  expect_near(y.read(), expected.y, kRounding);

  const DeviceValues dy = on_device(in.dy, kRows);
  const DeviceValues magnitude(*ops_, 1, kRows);
  const DeviceValues a(*ops_, kRank, kDepth);
  const DeviceValues b(*ops_, kRows, kRank);
  const DeviceValues dx(*ops_, kTokens, kDepth);
  LinearGradient gradient;
  gradient.magnitude = magnitude.vector();
  gradient.a = a.matrix();
  gradient.b = b.matrix();
  const Matrix dx_view = dx.matrix();
  layer.backward(base, dy.matrix(), x.matrix(), {}, Store::kOverwrite, &dx_view, gradient, *ops_);
  expect_near(magnitude.read(), expected.magnitude, kRounding);
  expect_near(a.read(), expected.a, kRounding);
  expect_near(b.read(), expected.b, kRounding);
  // Products with bfloat16 weights round the gradient of y to bfloat16.
  const bool rounds = GetParam().compute == DType::kNf4 || GetParam().compute == DType::kBF16;
  expect_near(dx.read(), expected.dx, rounds ? 1.0 / 256.0 : kRounding);
}

INSTANTIATE_TEST_SUITE_P(Types, DoraTest, ::testing::ValuesIn(dora_cases()),
                         ::testing::PrintToStringParamName());

TEST(NewDoraTest, TheHeadHasATypeOfItsOwn) {
  AdaptedModule layer = lora_module(kLayer, kDepth, kRows, kRank, kScale);
  layer.magnitude = "m";
  AdaptedModule head = lora_module(std::string(kHeadPath), kDepth, kRows, kRank, kScale);
  head.magnitude = "head m";
  const Tensor weight = random_tensor({kRows, kDepth}, 0.1, 1);
  const TensorMap base{{kLayer + ".weight", weight}, {"lm_head.weight", weight}};
  const TensorMap tensors =
      init_adapter({layer, head}, {}, base, 7, {DType::kNf4, DType::kBlockI8}).value();
  EXPECT_EQ(float_values(tensors.at("m")), norms_of(multiplied(weight, DType::kNf4)));
  EXPECT_EQ(float_values(tensors.at("head m")), norms_of(multiplied(weight, DType::kBlockI8)));
}

TEST(NewDoraTest, WeightsThatCannotBeQuantizedAreRefused) {
  AdaptedModule module = lora_module(kLayer, 24, 3, 1, kScale);
  module.magnitude = "m";
  const TensorMap base{{kLayer + ".weight", random_tensor({3, 24}, 0.1, 1)}};
  const auto refused = init_adapter({module}, {}, base, 7, {DType::kNf4, DType::kBlockI8});
  EXPECT_EQ(refused.status().code(), Errc::kUnimplemented);
  EXPECT_EQ(refused.status().message(),
            "base model: tensor " + kLayer +
                ".weight: rows of 24 weights do not divide into blocks of 64 for nf4");
}

}  // namespace
}  // namespace tidemill::engines
