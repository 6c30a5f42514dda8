// SPDX-License-Identifier: Apache-2.0
// Private to actors/gateway/. Generation: the choices of an exchange, from the request to the last
// token.
#pragma once

#include "actors/gateway/gateway_state.hpp"
#include "actors/gateway/openai/generation_call.hpp"

namespace tidemill::actors {

/// Requests all choices of `call` from the device and adds them to the exchange `id`, which must
/// exist and have no choices yet. Responds with 429 if `GatewayLimits::max_choices` or
/// `max_pending_prompt_bytes` would be exceeded, and with 404 if the model names a private adapter.
/// The last reply of the device ends the exchange.
void generate(GatewaySelf self, ExchangeId id, openai::GenerationCall call);

/// Passes the tokens of `batch` to the responses that they belong to, and writes them to those that
/// are streamed. Ignores the tokens of cancelled choices.
void on_tokens(GatewaySelf self, const TokenBatch& batch);

}  // namespace tidemill::actors
