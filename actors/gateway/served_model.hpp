// SPDX-License-Identifier: Apache-2.0
// What the gateway knows about the model that it serves.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engines/chat/chat_renderer.hpp"
#include "engines/constraint/constraint_cache.hpp"
#include "engines/sampling/sampling_options.hpp"
#include "engines/tokenizer/tokenizer.hpp"

namespace tidemill::actors {

/// A served model. All adapters over it share its tokenizer and its limits.
///
/// Threads: safe to read concurrently.
struct ServedModel {
  std::string id;            // the name that requests give
  std::int64_t created = 0;  // Unix time, seconds
  engines::Tokenizer tokenizer;
  /// Absent if the model has no chat template. Chat requests are then refused.
  std::optional<engines::chat::ChatRenderer> chat;
  std::int64_t vocab_size = 0;
  /// Longest prompt plus response, in tokens: limited by the context and by the KV cache;
  /// `max_model_len` in the API.
  std::int64_t max_positions = 0;
  /// The defaults of sampling: those of generation_config.json, or a temperature of 1 and no
  /// filters.
  engines::SamplingOptions sampling;
  /// The maximum length of a chat response if the request does not say. Absent: what the context
  /// has room for.
  std::optional<std::int64_t> max_new_tokens;
  std::vector<std::int32_t> stop_ids;  // the model's end tokens
  /// Makes the constraints of requests. Requests that need one are refused if it is null.
  std::shared_ptr<engines::ConstraintCache> constraints = nullptr;
};

}  // namespace tidemill::actors
