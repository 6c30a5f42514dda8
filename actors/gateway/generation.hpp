// SPDX-License-Identifier: Apache-2.0
// Private to actors/gateway/. Generation: the choices of an exchange, from the request to the last
// token.
#pragma once

#include "actors/gateway/gateway_state.hpp"
#include "actors/gateway/openai/generation_call.hpp"

namespace tidemill::actors {

/// Has the device generate the choices of an exchange. Refuses them with 429 beyond the limit.
void generate(GatewaySelf self, ExchangeId id, openai::GenerationCall call);

/// Adds tokens that the device has generated to their streams.
void on_tokens(GatewaySelf self, const TokenBatch& batch);

}  // namespace tidemill::actors
