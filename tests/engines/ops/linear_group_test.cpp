// SPDX-License-Identifier: Apache-2.0
// Tests that linear layers computed as a group have the bits of separate calls.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engines/ops/host/host_backend.hpp"
#include "engines/ops/op_types.hpp"
#include "tests/engines/ops/device_values.hpp"
#include "tests/engines/ops/fixtures.hpp"

namespace tidemill::engines::ops_test {
namespace {

// A layer of a group: its weight, and its results of both ways.
struct Layer {
  std::unique_ptr<PreparedWeight> weight;
  Rows bias;
  Rows grouped;
  Rows apart;
};

struct LayerKind {
  DType dtype = DType::kF32;
  std::int64_t out_features = 0;
  bool has_bias = false;
};

class LinearGroup : public OpsTest {
protected:
  [[nodiscard]] std::vector<Layer> make_layers(const std::vector<LayerKind>& kinds,
                                               std::int64_t in_features) {
    std::vector<Layer> layers(kinds.size());
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      const Rows values = Rows::random(kinds[i].out_features, in_features, 10 * i + 2);
      layers[i].weight =
          ops().prepare_weight(f32_weight(values), kinds[i].dtype, WeightUse::kForward).value();
      if (kinds[i].has_bias) {
        layers[i].bias = Rows::random(1, kinds[i].out_features, 10 * i + 3);
      }
    }
    return layers;
  }

  // Compares with separate calls, for several numbers of rows, overwriting and adding.
  void compare(const std::vector<LayerKind>& kinds, std::int64_t in_features,
               const std::string& what) {
    std::vector<Layer> layers = make_layers(kinds, in_features);
    for (const std::int64_t rows : kRowCounts) {
      for (const Store store : {Store::kOverwrite, Store::kAdd}) {
        const Rows x = Rows::random(rows, in_features, 1, 1.0F, store == Store::kAdd ? 5 : 0);
        std::vector<host::LinearTerm> terms;
        for (Layer& layer : layers) {
          const std::int64_t out_features = layer.weight->out_features();
          layer.grouped = Rows::random(rows, out_features, 7, 1.0F, 3);
          layer.apart = layer.grouped;
          terms.push_back({layer.weight.get(), layer.bias.span(), layer.grouped.view()});
          ops().linear(x.view(), *layer.weight, layer.bias.span(), store, layer.apart.view());
        }
        ops().linear_group(x.view(), terms, store);
        for (const Layer& layer : layers) {
          expect_same_bits(layer.grouped, layer.apart,
                           what + ", " + std::to_string(rows) + " rows");
        }
        ++compared_;
      }
    }
  }

  // One row, a tile, rows that are copied, and rows that are divided among the workers.
  static constexpr std::int64_t kRowCounts[] = {0, 1, 2, 7, 16, 17, 130};
  int compared_ = 0;
};

constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kBlockI8, DType::kNf4};

TEST_P(LinearGroup, HasTheBitsOfSeparateCalls) {
  for (const DType dtype : kTypes) {
    const auto block = static_cast<std::int64_t>(dtype_block_elements(dtype));
    for (const std::int64_t min_in : {5, 64, 256, 333}) {
      const std::int64_t in_features = (min_in + block - 1) / block * block;
      const std::string what =
          std::string(dtype_name(dtype)) + ", " + std::to_string(in_features) + " features";
      // The shapes of queries, keys and values, and of gate and up; odd ones.
      compare({{dtype, 96, true}, {dtype, 48, true}, {dtype, 48, true}}, in_features, what);
      compare({{dtype, 129, false}, {dtype, 129, false}}, in_features, what);
      compare({{dtype, 1, false}, {dtype, 77, true}, {dtype, 3, true}}, in_features, what);
    }
  }
  EXPECT_EQ(compared_, 4 * 4 * 3 * 7 * 2);
}

TEST_P(LinearGroup, MayMixTypes) {
  compare({{DType::kBF16, 40, true},
           {DType::kF32, 80, false},
           {DType::kNf4, 33, true},
           {DType::kBF16, 16, false},
           {DType::kBlockI8, 70, true},
           {DType::kF32, 5, true}},
          256, "mixed types");
  compare({{DType::kF32, 5, true}, {DType::kF32, 90, true}}, 256, "a copy for the second");
  compare({}, 32, "no layers");
  compare({{DType::kBF16, 31, true}}, 32, "one layer");
  EXPECT_EQ(compared_, 4 * 7 * 2);
}

// Returns columns [first, first + count) of `m`.
host::Matrix columns(host::Matrix m, std::int64_t first, std::int64_t count) {
  return {m.rows > 0 ? m.data + first : m.data, m.rows, count, m.stride};
}

TEST_P(LinearGroup, PartsOfALayerHaveTheBitsOfTheWhole) {
  struct Part {
    std::int64_t first;
    std::int64_t count;
  };
  constexpr std::int64_t kIn = 256;
  constexpr std::int64_t kOut = 456;  // the last panel is not full
  for (const DType dtype : kTypes) {
    const auto weight = ops()
                            .prepare_weight(f32_weight(Rows::random(kOut, kIn, 2)), dtype,
                                            WeightUse::kForwardAndBackward)
                            .value();
    const Rows bias = Rows::random(1, kOut, 3);
    for (const std::int64_t rows : kRowCounts) {
      const std::string what =
          std::string(dtype_name(dtype)) + ", " + std::to_string(rows) + " rows";
      const Rows x = Rows::random(rows, kIn, 1);
      const Rows dy = Rows::random(rows, kOut, 4);
      for (const Store store : {Store::kOverwrite, Store::kAdd}) {
        Rows y = Rows::random(rows, kOut, 5, 1.0F, 3);
        Rows dx = Rows::random(rows, kIn, 6, 1.0F, 3);
        Rows y_parts = y;
        Rows dx_parts = dx;
        ops().linear(x.view(), *weight, bias.span(), store, y.view());
        ops().linear_backward_input(dy.view(), *weight, store, dx.view());
        for (const auto& [first, count] : {Part{320, 136}, Part{0, 64}, Part{64, 256}}) {
          const host::LinearTerm term{weight.get(), bias.span().subspan(first, count),
                                      columns(y_parts.view(), first, count), first};
          ops().linear_group(x.view(), {&term, 1}, store);
        }
        for (const auto& [first, count] : {Part{64, 192}, Part{0, 64}}) {
          ops().linear_backward_input(dy.view(), *weight, first, store,
                                      columns(dx_parts.view(), first, count));
        }
        expect_same_bits(y_parts, y, what);
        expect_same_bits(dx_parts, dx, what);
      }
    }
  }
}

// Backends also run groups after the call has returned, when the list of terms is gone.
TEST_P(LinearGroup, TermsMayBeFreedBeforeTheOperationRuns) {
  Workers workers(2);
  const auto ops =
      host::make_backend(GetParam().make(workers).value(), std::make_unique<host::MappedMemory>(),
                         host::Execution::kDeferred);
  const Rows values = Rows::random(20, 24, 3);
  const auto weight =
      ops->prepare_weight(f32_weight(values), DType::kBF16, WeightUse::kForward).value();
  const Rows random = Rows::random(3, 24, 4);
  const DeviceValues x(*ops, 3, 24, random.values());
  const DeviceValues bias(*ops, std::vector<float>(20, 0.25F));
  const DeviceValues first(*ops, 3, 20);
  const DeviceValues second(*ops, 3, 20);
  const DeviceValues apart(*ops, 3, 20);
  {
    std::vector<engines::LinearTerm> terms = {{weight.get(), bias.vector(), first.matrix()},
                                              {weight.get(), {}, second.matrix()}};
    ops->linear_group(x.matrix(), terms, Store::kOverwrite);
    terms.assign(2, {});
  }
  ops->linear(x.matrix(), *weight, bias.vector(), Store::kOverwrite, apart.matrix());
  EXPECT_EQ(first.read(), apart.read());
  ops->linear(x.matrix(), *weight, {}, Store::kOverwrite, apart.matrix());
  EXPECT_EQ(second.read(), apart.read());
}

INSTANTIATE_TEST_SUITE_P(Backends, LinearGroup, ::testing::ValuesIn(backends()), backend_name);

}  // namespace
}  // namespace tidemill::engines::ops_test
