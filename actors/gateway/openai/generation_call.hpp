// SPDX-License-Identifier: Apache-2.0
// The requests of /v1/completions and /v1/chat/completions.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "actors/gateway/openai/api_error.hpp"
#include "actors/gateway/served_model.hpp"
#include "base/json/json.hpp"
#include "engines/rollout_engine.hpp"

namespace tidemill::actors::openai {

/// The form of a request and of its response.
enum class GenerationForm : std::uint8_t { kCompletion, kChat };

/// The maximum number of responses to one request: prompts times `n`.
inline constexpr std::int64_t kMaxChoices = 1024;
/// The maximum of `logprobs` and `top_logprobs`.
inline constexpr std::int64_t kMaxAlternatives = 20;

/// The maximum number of JSON values in the body of a chat, so that parsing takes little memory.
inline constexpr std::size_t kMaxChatValues = 100'000;
/// The maximum of the arguments of all tool calls in the messages of a chat. Units: bytes.
inline constexpr std::size_t kMaxArgumentBytes = std::size_t{2} << 20U;

/// The longest `cache_salt`. Units: bytes.
inline constexpr std::size_t kMaxSaltBytes = 1024;

/// How the server treats a field of a request.
enum class FieldUse : std::uint8_t {
  kUsed,
  kNoEffect,  // accepted; does not affect the response
  kRefused,   // known, but not supported
};

/// How the server treats one field of a request.
struct FieldInfo {
  std::string_view name;
  FieldUse use = FieldUse::kUsed;
  std::string_view remark = {};  // why it is refused or has no effect
  /// JSON texts of values of a refused field that ask for what the server does, and are accepted.
  std::array<std::string_view, 2> accepted = {};
};

/// Returns the known fields. Any other field is refused as unknown.
[[nodiscard]] std::span<const FieldInfo> generation_fields(GenerationForm form);

/// A prompt, as token ids.
struct Prompt {
  std::vector<std::int32_t> ids;
  std::optional<std::string> text;  // as given; absent if the request gave ids
};

/// A request that has been checked, except for the name of its model.
struct GenerationCall {
  GenerationForm form = GenerationForm::kCompletion;
  std::string model;
  std::vector<Prompt> prompts;  // at least one
  std::int32_t num_per_prompt = 1;
  /// The settings of all choices. The caller fills in the id, prompt, seed, draw key, adapter,
  /// tenant and priority of each. `max_new_tokens` is set: with it, the longest prompt and its
  /// response fit `ServedModel::max_positions`.
  engines::RolloutRequest settings;
  std::optional<std::uint64_t> seed;
  std::optional<std::int32_t> requested_max_tokens;  // absent if the request has none
  bool stream = false;
  bool include_usage = false;  // in a stream
  bool echo = false;
  bool logprobs = false;
  std::set<std::string> tools;        // the names of those that the response may call
  bool first_tool_call_only = false;  // drop all calls after the first

  [[nodiscard]] std::size_t num_choices() const noexcept {
    return prompts.size() * static_cast<std::size_t>(num_per_prompt);
  }
};

/// Parses the body of a request, renders its messages and encodes its prompts. `now` is the time
/// for chat templates, "YYYY-MM-DDTHH:MM:SS".
/// Errors: 400 naming the field.
/// Threads: safe to call concurrently. Takes time in proportion to the prompts.
[[nodiscard]] ApiResult<GenerationCall> parse_generation(GenerationForm form, std::string_view body,
                                                         const ServedModel& model,
                                                         const std::string& now);

/// Does the same with a body that is already JSON.
[[nodiscard]] ApiResult<GenerationCall> read_generation(GenerationForm form, const Json& body,
                                                        const ServedModel& model,
                                                        const std::string& now);

}  // namespace tidemill::actors::openai
