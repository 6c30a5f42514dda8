// SPDX-License-Identifier: Apache-2.0
// Adapters that figures load beside a model.
#pragma once

#include <cstdint>
#include <string>

#include "engines/formats/model_files.hpp"
#include "engines/runtime/named_adapters.hpp"

namespace tidemill::launcher {

/// The rank of adapters that are measured; they are on all linear layers but the head.
inline constexpr std::int64_t kBenchRank = 16;

/// Returns their config.
[[nodiscard]] engines::AdapterConfig bench_adapter_config();

/// Returns the name of one of those that `load_bench_adapters` loads.
[[nodiscard]] std::string bench_adapter_name(std::int64_t index);

/// Loads `count` adapters with random f32 weights over `model`.
/// Errors: those of `NamedAdapters::load`.
[[nodiscard]] Status load_bench_adapters(const engines::ModelFiles& model, std::int64_t count,
                                         engines::NamedAdapters& adapters);

}  // namespace tidemill::launcher
