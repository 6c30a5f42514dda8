// SPDX-License-Identifier: Apache-2.0
// Optimizer steps over gradients that are not finite.
#include "engines/runtime/trained_parameters.hpp"

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/tensor/float_tensor.hpp"
#include "engines/ops/reference/factory.hpp"

namespace tidemill::engines {
namespace {

class TrainedParametersTest : public ::testing::Test {
protected:
  // Gives every element of this tensor's gradient the value.
  void set_gradient(const std::string& name, float value) {
    TensorMap tensors = gradient_.to_tensors(DType::kF32);
    Tensor& tensor = tensors.at(name);
    tensor.data = Buffer::adopt(std::vector<float>(kElements, value), DType::kF32);
    ASSERT_TRUE(gradient_.load(tensors).ok());
  }

  // Takes a step that skips these tensors.
  Status update(const std::vector<std::string>& frozen) {
    OptimStep step;
    step.frozen = frozen;
    TIDEMILL_RETURN_IF_ERROR(parameters_.check_step(step));
    parameters_.begin_step(gradient_, step);
    while (parameters_.stepping()) {
      TIDEMILL_RETURN_IF_ERROR(parameters_.run_unit());
    }
    return {};
  }

  static constexpr std::size_t kElements = 3;
  static constexpr float kInfinity = std::numeric_limits<float>::infinity();

  TensorShapes shapes_{{"a", {kElements}}, {"b", {kElements}}, {"c", {kElements}}};
  std::unique_ptr<Ops> ops_ = make_reference_ops();
  TrainedParameters parameters_ =
      TrainedParameters::create(shapes_, {}, DType::kF32, *ops_).value();
  ParameterSet gradient_ = ParameterSet::create(shapes_, *ops_).value();
};

TEST_F(TrainedParametersTest, AGradientThatIsNotFiniteEndsTheStepAndIsNamed) {
  set_gradient("c", kInfinity);
  const Status status = update({});
  EXPECT_EQ(status.code(), Errc::kInternal);
  EXPECT_EQ(status.message(), "gradient of tensor c is not finite");
  EXPECT_EQ(parameters_.last_update().optimizer_step, 0);
}

TEST_F(TrainedParametersTest, AGradientWhoseSquareOverflowsEndsTheStep) {
  OptimStep step;
  step.max_grad_norm = 0.0;
  set_gradient("c", 3e37F);
  ASSERT_TRUE(parameters_.check_step(step).ok());
  parameters_.begin_step(gradient_, step);
  Status status;
  while (status.ok() && parameters_.stepping()) {
    status = parameters_.run_unit();
  }
  EXPECT_EQ(status.code(), Errc::kInvalidArgument) << status.to_string();
  EXPECT_EQ(parameters_.last_update().optimizer_step, 0);
  EXPECT_TRUE(update({}).ok()) << "clipped to a norm of 1";
}

TEST_F(TrainedParametersTest, TheGradientOfAFrozenTensorNeedNotBeFinite) {
  set_gradient("a", 2.0F);
  set_gradient("b", kInfinity);
  ASSERT_TRUE(update({"b"}).ok());
  EXPECT_EQ(parameters_.last_update().optimizer_step, 1);
  EXPECT_NEAR(parameters_.last_update().gradient_norm, 3.4641016, 1e-6) << "sqrt(3 x 2^2)";
}

TEST_F(TrainedParametersTest, TheTensorThatIsNamedIsNotFrozen) {
  set_gradient("a", kInfinity);
  set_gradient("c", std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(update({"a"}).message(), "gradient of tensor c is not finite");
}

}  // namespace
}  // namespace tidemill::engines
