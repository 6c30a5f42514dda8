// SPDX-License-Identifier: Apache-2.0
// Reads the requests of Tinker's API. Every refusal names the field.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "actors/gateway/tinker/calls.hpp"

namespace tidemill::actors::tinker {

/// The limits of a model that requests must respect.
struct ModelLimits {
  std::int64_t vocab_size = 0;
  std::int64_t max_positions = 0;
  /// The maximum tokens of a sequence to train on, with the target of its last position.
  std::int64_t max_train_tokens = 0;
  std::vector<std::int32_t> stop_ids;  // the model's end tokens
};

/// The maximum of `num_samples`.
inline constexpr std::int64_t kMaxSamples = 1024;
/// The maximum of `lora_config.rank`.
inline constexpr std::int64_t kMaxRank = 1024;
/// The maximum size of a decompressed body of /api/v1/forward_backward.
inline constexpr std::size_t kMaxForwardBytes = std::size_t{64} << 20U;
/// The range of `ttl_seconds`: an hour to ten years.
inline constexpr std::int64_t kMinTtlSeconds = 3600;
inline constexpr std::int64_t kMaxTtlSeconds = 10LL * 365 * 24 * 3600;

/// Each reads the JSON body of one request. Unknown fields are refused; null counts as absent.
/// Threads: safe to call concurrently.
[[nodiscard]] CallResult<CreateSession> read_create_session(std::string_view body);
[[nodiscard]] CallResult<CreateModel> read_create_model(std::string_view body);
[[nodiscard]] CallResult<LoadWeights> read_load_weights(std::string_view body);
[[nodiscard]] CallResult<SaveWeights> read_save_weights(CheckpointKind kind, std::string_view body);
[[nodiscard]] CallResult<OptimStepCall> read_optim_step(std::string_view body);
[[nodiscard]] CallResult<CreateSamplingSession> read_create_sampling_session(std::string_view body);
[[nodiscard]] CallResult<SampleCall> read_sample(std::string_view body, const ModelLimits& model);
[[nodiscard]] CallResult<RetrieveFutures> read_retrieve_futures(std::string_view body);

/// Reads a body whose only field that matters is the string `name`; it may also have a `type` and
/// the boolean `allow_metadata_only`.
[[nodiscard]] CallResult<std::string> read_name(std::string_view name, std::string_view body);
/// Reads `ttl_seconds`, which may be null.
[[nodiscard]] CallResult<std::optional<std::int64_t>> read_ttl(std::string_view body);

/// Reads the protobuf body of /api/v1/forward_backward, compressed with zstd if
/// `content_encoding` is "zstd".
/// Threads: safe to call concurrently. Takes time in proportion to the body.
[[nodiscard]] CallResult<ForwardCall> read_forward(std::string_view body,
                                                   std::string_view content_encoding,
                                                   const ModelLimits& model);

}  // namespace tidemill::actors::tinker
