// SPDX-License-Identifier: Apache-2.0
// The responses of /v1/models, and the requests of vLLM's /tokenize, /detokenize,
// /v1/load_lora_adapter and /v1/unload_lora_adapter.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "actors/device/messages.hpp"
#include "actors/gateway/openai/api_error.hpp"
#include "actors/gateway/served_model.hpp"

namespace tidemill::actors::openai {

/// Returns the list of the model and the adapters over it. An adapter has the model as its parent
/// and its root.
[[nodiscard]] Json model_list(const ServedModel& model, const AdapterList& adapters);

/// Returns the entry of the model or the adapter `id`, or nullopt if there is none.
[[nodiscard]] std::optional<Json> model_entry(const ServedModel& model, const AdapterList& adapters,
                                              std::string_view id);

/// Returns what a request gets that has deleted a model.
[[nodiscard]] Json deleted_model(const std::string& name);

/// Returns the error for a request that names an unknown model. The message names the model
/// `served`.
[[nodiscard]] ApiError model_not_found(const std::string& name, const ServedModel& served);

/// Responds to /tokenize: {"prompt": TEXT} or {"messages": [...]} gives the token ids.
/// Source: the request and response classes of vLLM's `vllm/entrypoints/openai/protocol.py`.
[[nodiscard]] ApiResult<Json> tokenize(std::string_view body, const ServedModel& model,
                                       const std::string& now);
/// Responds to /detokenize: {"tokens": [...]} gives {"prompt": TEXT}.
[[nodiscard]] ApiResult<Json> detokenize(std::string_view body, const ServedModel& model);

/// Parses {"lora_name": NAME, "lora_path": DIR}; without `with_path`, the path is absent.
[[nodiscard]] ApiResult<AdapterRequest> parse_adapter_request(std::string_view body,
                                                              bool with_path);

}  // namespace tidemill::actors::openai
