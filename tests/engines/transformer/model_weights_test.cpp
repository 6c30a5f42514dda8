// SPDX-License-Identifier: Apache-2.0
// Tests loading of weights, adapters and parameter sets: names, shapes, and rejected inputs.
#include "engines/transformer/model_weights.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/buffer_allocator.hpp"
#include "base/tensor/float_tensor.hpp"
#include "engines/formats/adapter_config.hpp"
#include "engines/formats/model_files.hpp"
#include "engines/transformer/adapter.hpp"
#include "engines/transformer/parameter_set.hpp"
#include "engines/transformer/rope_cache.hpp"
#include "tests/engines/ops/device_values.hpp"
#include "tests/engines/transformer/backends.hpp"
#include "tests/engines/transformer/random_model.hpp"

namespace tidemill::engines {
namespace {

class ModelWeightsTest : public ::testing::Test {
protected:
  [[nodiscard]] Status weights_status(const TensorMap& tensors) {
    return ModelWeights::create(config_, tensors, {}, *ops_).status();
  }
  [[nodiscard]] Status adapter_status(const AdapterSpec& spec, const TensorMap& tensors) {
    return Adapter::create(config_, spec, tensors, *base_, WeightUse::kForward, *ops_).status();
  }

  std::shared_ptr<Ops> ops_ = backends()[0].make();
  ModelConfig config_ = small_config({true, true, true, false, false});
  TensorMap tensors_ = random_weights(config_, 1);
  std::shared_ptr<const ModelWeights> base_ =
      ModelWeights::create(config_, tensors_, {}, *ops_).value();
};

TEST_F(ModelWeightsTest, AcceptsExactlyTheParametersOfTheConfig) {
  EXPECT_TRUE(weights_status(tensors_).ok());
}

TEST_F(ModelWeightsTest, LinearLayersAreTheModulesThatAdaptersMayTarget) {
  const std::vector<LinearModule> linears = linear_modules(config_);
  const std::vector<ModelModule> modules = model_modules(config_);
  ASSERT_EQ(linears.size() + 2, modules.size()) << "in addition: embed_tokens and lm_head";
  for (std::size_t i = 0; i < linears.size(); ++i) {
    EXPECT_EQ(linears[i].path, modules[i + 1].path);
    EXPECT_EQ(linears[i].in_features, modules[i + 1].in_features);
    EXPECT_EQ(linears[i].out_features, modules[i + 1].out_features);
    EXPECT_EQ(linears[i].bias, modules[i + 1].has_bias);
  }
}

TEST_F(ModelWeightsTest, NamesTheTensorThatItRejects) {
  TensorMap missing = tensors_;
  missing.erase("model.layers.1.self_attn.q_norm.weight");
  EXPECT_EQ(weights_status(missing).message(),
            "model: tensor \"model.layers.1.self_attn.q_norm.weight\": missing");

  TensorMap unknown = tensors_;
  unknown["lm_head.bias"] = make_float_tensor(std::vector<float>(53), {53}, DType::kF32);
  EXPECT_EQ(weights_status(unknown).message(),
            "model: tensor \"lm_head.bias\": unexpected: the config asks for no such tensor");

  TensorMap misshapen = tensors_;
  misshapen["model.norm.weight"] = make_float_tensor(std::vector<float>(25), {25}, DType::kF32);
  EXPECT_EQ(weights_status(misshapen).message(),
            "model: tensor \"model.norm.weight\": shape [25], but the config asks for [24]");
}

TEST_F(ModelWeightsTest, CountsItsBytes) {
  const auto weights = ModelWeights::create(config_, tensors_, {}, *ops_).value();
  std::int64_t expected = 0;
  for (const auto& [name, tensor] : tensors_) {
    expected += tensor.num_elements() * 4;
  }
  // Tied: the head is a second copy of the embedding.
  EXPECT_EQ(weights->size_bytes(), expected + 53 * 24 * 4);
}

// Returns what a version computes: the elements of the table, the gain of a norm, and products of a
// layer and of the head.
std::vector<float> bits_of(const ModelWeights& weights, Ops& ops) {
  std::vector<std::int32_t> ids(53);
  std::iota(ids.begin(), ids.end(), 0);
  DeviceLists lists(ops);
  const DeviceValues table(ops, 53, 24);
  ops.embed(lists.indices(ids), weights.embedding(), table.matrix());
  std::vector<float> out = table.read();
  const std::vector<float> gain = read_values(ops, weights.final_gain());
  out.insert(out.end(), gain.begin(), gain.end());
  const DeviceValues x(ops, std::vector<float>(24, 0.5F));
  for (const PreparedWeight* weight :
       {&std::as_const(*weights.layer(1).linears[LinearKind::kQuery].weight), &weights.head()}) {
    const DeviceValues y(ops, 1, weight->out_features());
    ops.linear(x.matrix(), *weight, {}, Store::kOverwrite, y.matrix());
    const std::vector<float> products = y.read();
    out.insert(out.end(), products.begin(), products.end());
  }
  return out;
}

// Lays out parameters in training.
class InPlaceTest : public ModelWeightsTest {
protected:
  std::shared_ptr<const ModelWeights> trained(std::uint64_t seed,
                                              std::shared_ptr<const ModelWeights> old,
                                              DType published = DType::kF32) {
    ParameterSet parameters = ParameterSet::create(expected_tensors(config_), *ops_).value();
    EXPECT_TRUE(parameters.load(random_weights(config_, seed)).ok());
    return ModelWeights::create(config_, parameters, published, {.compute = published}, *ops_,
                                std::move(old))
        .value();
  }
};

TEST_F(InPlaceTest, HasTheBitsOfThePublishedTensors) {
  for (const DType published : {DType::kF32, DType::kBF16}) {
    const TensorMap tensors = to_float_type(random_weights(config_, 1), published);
    const auto expected =
        ModelWeights::create(config_, tensors, {.compute = published}, *ops_).value();
    EXPECT_EQ(bits_of(*trained(1, nullptr, published), *ops_), bits_of(*expected, *ops_));
  }
}

TEST_F(InPlaceTest, TheMemoryOfAnUnsharedVersionIsReused) {
  auto weights = trained(1, nullptr);
  const DeviceAddress gain = weights->final_gain().data;
  const std::weak_ptr<const ModelWeights> old = weights;
  weights = trained(2, std::move(weights));
  EXPECT_EQ(weights->final_gain().data, gain);
  EXPECT_TRUE(old.expired()) << "a lookup of the old version would find the new one";
  const auto fresh = trained(2, nullptr);
  EXPECT_EQ(bits_of(*weights, *ops_), bits_of(*fresh, *ops_));
  EXPECT_EQ(weights->size_bytes(), fresh->size_bytes());
}

TEST_F(InPlaceTest, ASharedVersionDoesNotChange) {
  const auto held = trained(1, nullptr);
  const std::vector<float> before = bits_of(*held, *ops_);
  auto weights = trained(2, held);
  EXPECT_EQ(bits_of(*held, *ops_), before);
  EXPECT_EQ(bits_of(*weights, *ops_), bits_of(*trained(2, nullptr), *ops_));
}

TEST_F(ModelWeightsTest, AdaptersMustMatchTheModel) {
  AdapterSpec spec = lora_on_all(config_, 1);
  const TensorMap tensors = random_lora(spec, 2);
  EXPECT_TRUE(adapter_status(spec, tensors).ok());
  EXPECT_EQ(Adapter::create(config_, spec, tensors, *base_, WeightUse::kForward, *ops_)
                .value()
                ->first_layer(),
            1);

  EXPECT_EQ(adapter_status({}, {}).message(), "the adapter has no target module");
  TensorMap missing = tensors;
  missing.erase(lora_b_name(spec[0].path));
  EXPECT_EQ(adapter_status(spec, missing).message(),
            "adapter: tensor \"base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight\": "
            "missing");

  const AdapterSpec elsewhere = {lora_module("model.layers.3.mlp.up_proj", 24, 40, 2, 1.0F)};
  EXPECT_EQ(adapter_status(elsewhere, random_lora(elsewhere, 2)).message(),
            "adapter module model.layers.3.mlp.up_proj is not a layer of the model");
  const AdapterSpec wider = {lora_module("model.layers.0.mlp.up_proj", 24, 41, 2, 1.0F)};
  EXPECT_EQ(adapter_status(wider, random_lora(wider, 2)).message(),
            "adapter module model.layers.0.mlp.up_proj is 24 -> 41, but the model's layer is "
            "24 -> 40");
}

TEST_F(ModelWeightsTest, ParameterSetsRoundTripInNameOrder) {
  ParameterSet set = ParameterSet::create(expected_tensors(config_), *ops_).value();
  ASSERT_TRUE(set.load(tensors_).ok());
  const TensorMap back = set.to_tensors(DType::kF32);
  ASSERT_EQ(back.size(), tensors_.size());
  std::int64_t offset = 0;
  auto expected = tensors_.begin();
  for (const ParameterSet::Entry& entry : set.entries()) {
    EXPECT_EQ(entry.offset, offset);
    EXPECT_EQ(entry.name, expected->first);
    EXPECT_TRUE(std::ranges::equal(back.at(entry.name).data.as<float>(),
                                   expected->second.data.as<float>()));
    offset += entry.size;
    ++expected;
  }
  EXPECT_EQ(set.values().size, offset);
  EXPECT_EQ(set.find("model.norm"), nullptr);

  TensorMap missing = tensors_;
  missing.erase("model.norm.weight");
  EXPECT_EQ(set.load(missing).message(), "tensor model.norm.weight is missing");
}

// Gives out one range of memory after the other.
class ArenaAllocator final : public BufferAllocator {
public:
  explicit ArenaAllocator(std::size_t bytes) : memory_(std::make_shared<std::vector<float>>()) {
    memory_->resize(bytes / sizeof(float));
  }
  Result<UnwrittenBuffer> allocate_unwritten(std::size_t size, DType dtype) override {
    const auto all = std::as_writable_bytes(std::span(*memory_));
    if (size > all.size() - used_) {
      return Status(Errc::kResourceExhausted, "the arena is full");
    }
    const auto bytes = all.subspan(std::exchange(used_, used_ + size), size);
    return UnwrittenBuffer{Buffer::of_pool(memory_, bytes, {1, ++segment_, 0, 0, size, dtype}),
                           bytes};
  }
  [[nodiscard]] std::size_t used() const { return used_; }

private:
  std::shared_ptr<std::vector<float>> memory_;
  std::size_t used_ = 0;
  std::uint64_t segment_ = 0;
};

// The tensor takes more than one read from the device.
TEST(ParameterSetTest, ValuesAreReadIntoMemoryOfAnAllocator) {
  constexpr std::int64_t kElements = (std::int64_t{1} << 18U) + 6;
  std::vector<float> values(kElements);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = 0.1F * static_cast<float>(i % 1013) - 7.0F;
  }
  const TensorMap tensors = {{"w", make_float_tensor(values, {2, kElements / 2}, DType::kF32)}};
  for (const Backend& backend : backends()) {
    const std::shared_ptr<Ops> ops = backend.make();
    ParameterSet set = ParameterSet::create({{"w", {2, kElements / 2}}}, *ops).value();
    ASSERT_TRUE(set.load(tensors).ok());
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      SCOPED_TRACE(backend.name + " " + std::string(dtype_name(dtype)));
      const Tensor expected = make_float_tensor(values, {2, kElements / 2}, dtype);
      ArenaAllocator arena(expected.data.size_bytes());
      const TensorMap read = set.to_tensors(dtype, arena).value();
      EXPECT_EQ(arena.used(), expected.data.size_bytes()) << "nothing else is allocated there";
      EXPECT_EQ(read.at("w").data.identity(),
                (BufferIdentity{1, 1, 0, 0, expected.data.size_bytes(), dtype}));
      EXPECT_EQ(read.at("w").shape, expected.shape);
      EXPECT_TRUE(std::ranges::equal(read.at("w").data.bytes(), expected.data.bytes()));
      EXPECT_TRUE(
          std::ranges::equal(set.to_tensors(dtype).at("w").data.bytes(), expected.data.bytes()));
      EXPECT_EQ(set.to_tensors(dtype, arena).status().code(), Errc::kResourceExhausted);
    }
  }
}

TEST(RopeCacheTest, EntriesDoNotDependOnWhenTheyAreComputed) {
  const ModelConfig config = small_config({false, false, false, false, true});
  const auto ops = backends()[0].make();
  RopeCache grown(config, *ops);
  for (const std::int64_t positions : {1, 2, 5, 40, 41}) {
    static_cast<void>(grown.tables(positions));
  }
  RopeCache at_once(config, *ops);
  const RopeTables expected = at_once.tables(97);
  const RopeTables actual = grown.tables(97);
  EXPECT_EQ(read_values(*ops, actual.cosine), read_values(*ops, expected.cosine));
  EXPECT_EQ(read_values(*ops, actual.sine), read_values(*ops, expected.sine));
}

}  // namespace
}  // namespace tidemill::engines
