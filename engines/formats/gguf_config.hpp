// SPDX-License-Identifier: Apache-2.0
// Converts the keys of a GGUF file to a model's config.
#pragma once

#include <optional>
#include <string_view>

#include "base/files/file.hpp"
#include "base/result.hpp"
#include "engines/formats/gguf.hpp"
#include "engines/formats/model_config.hpp"

namespace tidemill::engines {

/// The tensor with the factors by which the llama3 scaling divides rotation frequencies.
inline constexpr std::string_view kRopeFactorsName = "rope_freqs.weight";

/// Returns the config that `header` describes. `header` must have been read from `file`. `given` is
/// the `config` argument of `open_gguf_model`. Errors: as `open_gguf_model`.
[[nodiscard]] Result<ModelConfig> gguf_config(const ReadableFile& file, const GgufHeader& header,
                                              const std::optional<ModelConfig>& given);

}  // namespace tidemill::engines
