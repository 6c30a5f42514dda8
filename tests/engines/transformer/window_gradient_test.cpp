// SPDX-License-Identifier: Apache-2.0
// Tests gradients of sequences that are processed in windows: they are close to those of whole
// sequences, and their bits do not depend on the rest of the batch.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engines/transformer/backward_groups.hpp"
#include "engines/transformer/gradients.hpp"
#include "tests/engines/ops/device_values.hpp"
#include "tests/engines/transformer/model_harness.hpp"
#include "tests/engines/transformer/random_model.hpp"

namespace tidemill::engines {
namespace {

// Lengths shorter and longer than the windows, multiples of the windows, and one token more.
const std::vector<std::int64_t> kLengths{9, 1, 30, 2, 17, 16};

// A model with trained adapters of every kind. The first one is null, which trains all parameters.
struct Subject {
  Subject(const Backend& backend, const ModelFeatures& features, const HarnessOptions& options)
      : config(small_config(features)),
        base(random_weights(config, 91)),
        harness(backend, config, base, options),
        sequences(random_sequences(config, kLengths, 92)) {
    for (const AdapterSample& sample : adapter_samples()) {
      const AdapterSpec spec = spec_of(sample.config, config);
      trained.push_back(harness.adapter(spec, random_adapter(spec, config, base, 93)));
    }
  }

  [[nodiscard]] ParameterSet gradients(const Adapter* adapter, std::int64_t window_tokens) {
    harness.backward.window_tokens = window_tokens;
    Gradients gradients = gradients_for(config, adapter, *harness.ops);
    harness.train(sequences, adapter, {0.8F, 64}, &gradients);
    return std::move(gradients.collect());
  }

  // Does the same in micro-batches that end before the indices in `cuts`.
  [[nodiscard]] std::vector<float> values(const Adapter* adapter, std::int64_t window_tokens,
                                          const std::vector<std::size_t>& cuts) {
    harness.backward.window_tokens = window_tokens;
    return gradient_values(harness, sequences, cuts, adapter, 64);
  }

  ModelConfig config;
  TensorMap base;
  ModelHarness harness;
  std::vector<TestSequence> sequences;
  std::vector<std::shared_ptr<const Adapter>> trained{nullptr};
};

// Returns the largest difference of a tensor's elements, relative to its largest element.
double distance(std::span<const float> actual, std::span<const float> expected) {
  double difference = 0.0;
  double size = 0.0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    difference = std::max(difference, std::abs(double{actual[i]} - double{expected[i]}));
    size = std::max(size, std::abs(double{expected[i]}));
  }
  return difference / size;
}

class WindowGradientTest : public ::testing::TestWithParam<Backend> {};

TEST_P(WindowGradientTest, OfUncutSequencesHaveTheBitsOfOneGroup) {
  for (const FeatureCase& c : feature_cases()) {
    for (const DType kv : {DType::kF32, DType::kBF16}) {
      Subject subject(GetParam(), c.features, {.kv = kv});
      for (const auto& adapter : subject.trained) {
        const auto expected = subject.values(adapter.get(), 0, {6});
        for (const std::int64_t window : {30, 47}) {
          ASSERT_EQ(subject.values(adapter.get(), window, {6}), expected)
              << c.name << " " << dtype_name(kv) << " " << window;
        }
      }
    }
  }
}

// Returns how much windows may change the gradient of a tensor. In f32 they change only the order
// of sums. With a bfloat16 cache, layers below the last one round a gradient that has changed in
// this way. Some of its elements may then round to the neighboring number, a relative difference of
// 1 / 256.
double tolerance(const std::string& name, DType kv) {
  const bool below = name.find("layers.0.") != std::string::npos ||
                     name.find("layers.1.") != std::string::npos ||
                     name.find("embed_tokens") != std::string::npos;
  return kv == DType::kBF16 && below ? 1.0 / 256.0 : 1e-5;
}

TEST_P(WindowGradientTest, AreCloseToThoseOfWholeSequences) {
  for (const DType kv : {DType::kF32, DType::kBF16}) {
    double largest = 0.0;
    for (const FeatureCase& c : feature_cases()) {
      Subject subject(GetParam(), c.features, {.kv = kv});
      for (const auto& adapter : subject.trained) {
        const ParameterSet whole = subject.gradients(adapter.get(), 0);
        for (const std::int64_t window : {1, 7, 16}) {
          const ParameterSet cut = subject.gradients(adapter.get(), window);
          for (const ParameterSet::Entry& entry : whole.entries()) {
            const double apart = distance(read_values(*subject.harness.ops, cut.values(entry)),
                                          read_values(*subject.harness.ops, whole.values(entry)));
            EXPECT_LE(apart, tolerance(entry.name, kv))
                << entry.name << " " << c.name << " " << dtype_name(kv) << " " << window;
            largest = std::max(largest, apart);
          }
        }
      }
    }
    EXPECT_GT(largest, 0.0);
    std::cout << "[ measured ] " << GetParam() << ", cache " << dtype_name(kv) << ": at most "
              << largest << " apart\n";
  }
}

TEST_P(WindowGradientTest, HaveTheSameBitsForEveryCutBetweenSequences) {
  for (const FeatureCase& c : feature_cases()) {
    for (const DType kv : {DType::kF32, DType::kBF16}) {
      Subject subject(GetParam(), c.features, {.kv = kv});
      for (const auto& adapter : subject.trained) {
        for (const std::int64_t window : {4, 16}) {
          const auto expected = subject.values(adapter.get(), window, {6});
          for (const std::vector<std::size_t>& cuts :
               {std::vector<std::size_t>{1, 2, 3, 4, 5, 6}, {2, 6}}) {
            ASSERT_EQ(subject.values(adapter.get(), window, cuts), expected)
                << c.name << " " << dtype_name(kv) << " " << window << ", " << cuts.size()
                << " parts";
          }
        }
      }
    }
  }
}

TEST_P(WindowGradientTest, HaveTheSameBitsWithInferenceRowsUnderEveryPolicy) {
  for (const FeatureCase& c : feature_cases()) {
    for (const DType type : {DType::kF32, DType::kBF16}) {
      HarnessOptions options{.kv = type};
      options.weights.compute = type;
      Subject subject(GetParam(), c.features, options);
      RandomStream random(94);
      for (const auto& adapter : subject.trained) {
        subject.harness.keep = {Recompute::kNone, type};
        subject.harness.inference_sequences.clear();
        const auto expected = subject.values(adapter.get(), 7, {6});
        subject.harness.inference_sequences = {random_ids(subject.config, 1, random),
                                               random_ids(subject.config, 21, random)};
        for (const Recompute recompute : kRecomputes) {
          subject.harness.keep.recompute = recompute;
          ASSERT_EQ(subject.values(adapter.get(), 7, {1, 4, 6}), expected)
              << c.name << " " << dtype_name(type) << " " << recompute_name(recompute);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, WindowGradientTest, ::testing::ValuesIn(backends()),
                         [](const auto& test) { return test.param.name; });

// Plans whole sequences of these lengths, one after the other.
BatchPlan plan_of(const std::vector<std::int64_t>& lengths) {
  BatchPlan plan;
  for (const std::int64_t length : lengths) {
    plan.segments.push_back({static_cast<std::int64_t>(plan.positions.size()), length, 0, {}});
    plan.roles.emplace_back();
    for (std::int64_t i = 0; i < length; ++i) {
      plan.positions.push_back(static_cast<std::int32_t>(i));
    }
  }
  return plan;
}

// First row, rows, rows of keys and values, whether gradients start at zero, number of segments.
using GroupShape = std::vector<std::int64_t>;

std::vector<GroupShape> shapes_of(const std::vector<BackwardGroup>& groups) {
  std::vector<GroupShape> shapes;
  for (const BackwardGroup& group : groups) {
    shapes.push_back({group.first_row, group.num_rows, group.num_kv_rows,
                      group.starts_at_zero ? 1 : 0, std::ssize(group.segments)});
  }
  return shapes;
}

TEST(BackwardGroupsTest, PackWholeSequencesAndCutLongOnes) {
  const std::vector<BackwardGroup> groups = plan_groups(plan_of({3, 5, 4, 17, 8, 1}), {8});
  EXPECT_EQ(shapes_of(groups), (std::vector<GroupShape>{{0, 8, 8, 1, 2},
                                                        {8, 4, 4, 1, 1},
                                                        {28, 1, 17, 1, 1},
                                                        {20, 8, 17, 0, 1},
                                                        {12, 8, 17, 0, 1},
                                                        {29, 8, 8, 1, 1},
                                                        {37, 1, 1, 1, 1}}));
  EXPECT_EQ(groups[0].segments[1].attention.first_row, 3);
  EXPECT_EQ(groups[0].segments[1].attention.first_kv_row, 3);
  EXPECT_EQ(groups[3].segments[0].attention.first_row, 0);
  EXPECT_EQ(groups[3].segments[0].attention.first_position, 8);
  EXPECT_EQ(groups[3].segments[0].attention.first_kv_row, 0);
  EXPECT_FALSE(groups[3].segments[0].completes);
  EXPECT_TRUE(groups[4].segments[0].completes);
}

TEST(BackwardGroupsTest, HaveRowsForThePrefixesThatTheirSegmentsContinue) {
  BatchPlan plan = plan_of({2, 3, 10, 12});
  for (std::size_t i = 0; i < 3; ++i) {
    plan.segments[i].first_position = 12;
    plan.roles[i].continued_prefix = 0;
  }
  plan.roles[3].own_prefix = 0;
  plan.prefixes = {{0, 12, true}};
  const std::vector<BackwardGroup> groups = plan_groups(plan, {8});
  EXPECT_EQ(shapes_of(groups), (std::vector<GroupShape>{{0, 2, 14, 1, 1},
                                                        {2, 3, 15, 1, 1},
                                                        {13, 2, 22, 1, 1},
                                                        {5, 8, 22, 0, 1},
                                                        {23, 4, 12, 1, 1},
                                                        {15, 8, 12, 0, 1}}));
  EXPECT_EQ(groups[2].segments[0].attention.first_position, 20);
  EXPECT_EQ(groups[3].segments[0].attention.first_position, 12);
  EXPECT_FALSE(groups[2].segments[0].completes);
  EXPECT_EQ(groups[3].segments[0].role.continued_prefix, 0);
  EXPECT_TRUE(groups[3].segments[0].completes);
  EXPECT_EQ(groups[5].segments[0].role.own_prefix, 0);
}

TEST(BackwardGroupsTest, FormOneGroupIfEverythingFits) {
  const BatchPlan plan = plan_of({3, 5, 40});
  for (const std::int64_t window : {0, 48, 1000}) {
    const std::vector<BackwardGroup> groups = plan_groups(plan, {window});
    ASSERT_EQ(groups.size(), 1U) << window;
    EXPECT_EQ(groups[0].num_rows, 48);
    EXPECT_EQ(groups[0].num_kv_rows, 48);
    EXPECT_TRUE(groups[0].starts_at_zero);
  }
}

TEST(BackwardGroupsTest, HaveOneSegmentEachIfSumsCannotBeCutAfterAnyRow) {
  const BatchPlan plan = plan_of({3, 5, 4, 17, 8, 1});
  EXPECT_EQ(shapes_of(plan_groups(plan, {8, 4})), (std::vector<GroupShape>{{0, 3, 3, 1, 1},
                                                                           {3, 5, 5, 1, 1},
                                                                           {8, 4, 4, 1, 1},
                                                                           {28, 1, 17, 1, 1},
                                                                           {20, 8, 17, 0, 1},
                                                                           {12, 8, 17, 0, 1},
                                                                           {29, 8, 8, 1, 1},
                                                                           {37, 1, 1, 1, 1}}));
  EXPECT_EQ(plan_groups(plan, {0, 64}).size(), 6U);
}

TEST(BackwardGroupsTest, WithoutWindowsCutNoSequenceAndJoinShortOnes) {
  const BatchPlan plan = plan_of({300, 212, 1, kWholeRows + 88, 500});
  std::vector<std::int64_t> rows;
  for (const BackwardGroup& group : plan_groups(plan, {})) {
    EXPECT_EQ(group.num_kv_rows, group.num_rows);
    rows.push_back(group.num_rows);
  }
  // The longest sequence determines the size.
  EXPECT_EQ(rows, (std::vector<std::int64_t>{513, 600, 500}));
  EXPECT_EQ(layer_rows(1613, 600, {}), 600);
  EXPECT_EQ(layer_rows(1613, 300, {}), kWholeRows);
  EXPECT_EQ(layer_rows(40, 30, {}), 40);
  EXPECT_EQ(layer_rows(1613, 600, {128}), 128);
}

}  // namespace
}  // namespace tidemill::engines
