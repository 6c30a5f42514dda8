// SPDX-License-Identifier: Apache-2.0
#include "bench/bench_adapters.hpp"

#include <utility>
#include <vector>

#include "base/random.hpp"
#include "engines/runtime/new_adapter.hpp"

namespace tidemill::bench {
namespace {

constexpr float kHalfWidth = 0.02F;

// Fills a tensor with random values, since B is zero in a new adapter but not in a trained one.
void fill(Tensor& tensor, RandomStream& random) {
  std::vector<float> values(static_cast<std::size_t>(tensor.num_elements()));
  for (float& value : values) {
    value = (static_cast<float>(random.below(2001)) - 1000.0F) * (kHalfWidth / 1000.0F);
  }
  tensor.dtype = DType::kF32;
  tensor.data = Buffer::adopt(std::move(values), DType::kF32);
}

}  // namespace

engines::AdapterConfig bench_adapter_config() {
  engines::AdapterConfig config;
  config.rank = kBenchRank;
  config.alpha = 2.0 * static_cast<double>(kBenchRank);
  config.targets = {engines::ModuleSelector::Kind::kAllLinear, {}, {}};
  return config;
}

std::string bench_adapter_name(std::int64_t index) {
  return "adapter-" + std::to_string(index);
}

Status load_bench_adapters(const engines::ModelFiles& model, std::int64_t count,
                           engines::NamedAdapters& adapters) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto seed = static_cast<std::uint64_t>(i);
    engines::NamedAdapter adapter{bench_adapter_name(i), {}, {}};
    TIDEMILL_ASSIGN_OR_RETURN(
        adapter.files, engines::make_adapter(bench_adapter_config(), model, DType::kF32, seed));
    RandomStream random(seed, 0);
    for (auto& [name, tensor] : adapter.files.tensors) {
      fill(tensor, random);
    }
    TIDEMILL_RETURN_IF_ERROR(adapters.load(std::move(adapter)));
  }
  return {};
}

}  // namespace tidemill::bench
