// SPDX-License-Identifier: Apache-2.0
// The keys of a GGUF file as a model's config.
#pragma once

#include <optional>
#include <string_view>

#include "base/file.hpp"
#include "base/result.hpp"
#include "engines/formats/gguf.hpp"
#include "engines/formats/model_config.hpp"

namespace tidemill::engines {

/// The tensor of factors that divide rotation frequencies: those of the llama3 scaling.
inline constexpr std::string_view kRopeFactorsName = "rope_freqs.weight";

/// Returns the config that `header`, read from `file`, describes; see `open_gguf_model` for what
/// `given` is. Errors: as there.
[[nodiscard]] Result<ModelConfig> gguf_config(const ReadableFile& file, const GgufHeader& header,
                                              const std::optional<ModelConfig>& given);

}  // namespace tidemill::engines
