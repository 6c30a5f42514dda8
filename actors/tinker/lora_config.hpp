// SPDX-License-Identifier: Apache-2.0
// The adapters of Tinker's API as PEFT describes them.
#pragma once

#include <string>

#include "actors/gateway/tinker/calls.hpp"
#include "engines/formats/adapter_config.hpp"

namespace tidemill::actors::tinker {

/// The `lora_alpha` of all adapters. The scale of an adapter is this divided by its rank, so that a
/// good learning rate hardly depends on the rank.
/// Source: https://thinkingmachines.ai/blog/lora, which uses 32.
inline constexpr double kLoraAlpha = 32.0;

/// Returns the configuration of an adapter over `base_model`.
[[nodiscard]] engines::AdapterConfig to_adapter_config(const LoraSettings& lora,
                                                       const std::string& base_model);

}  // namespace tidemill::actors::tinker
