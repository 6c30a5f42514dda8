// SPDX-License-Identifier: Apache-2.0
// Private to actors/gateway/. The state of a gateway, and what its routes share: the end of an
// exchange, and work at a port.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <caf/all.hpp>

#include "actors/gateway/fair_limit.hpp"
#include "actors/gateway/gateway_metrics.hpp"
#include "actors/gateway/openai/response_builder.hpp"
#include "actors/gateway/parse_lanes.hpp"
#include "actors/gateway/spawn.hpp"
#include "base/files/file.hpp"

namespace tidemill::actors {

struct GatewayState;
using GatewaySelf = GatewayActor::stateful_pointer<GatewayState>;

/// How a gateway goes on with an exchange once the work for it has run. Runs in the gateway, unless
/// the exchange has ended meanwhile.
using NextStep = std::function<void(GatewaySelf self, ExchangeId id)>;

/// What runs at a port for a request: a function of the body, which it may move from.
using PortFunction = std::function<NextStep(std::string& body)>;

/// Which bodies a gateway counts together, against a limit of their own.
enum class BodyKind : std::uint8_t { kJson, kUpload };

/// A request at a port.
struct GatewayWork {
  std::string body;       // freed by the work
  PortFunction function;  // likewise
  BodyKind kind = BodyKind::kJson;
  ParseLane lane = ParseLane::kSmall;  // of a JSON body
  std::size_t body_bytes = 0;
  std::string tenant;
  std::atomic<bool> abandoned = false;  // the exchange has ended
  NextStep next;                        // written by the work
};

/// A file whose bytes are being sent.
struct Download {
  std::shared_ptr<const ReadableFile> file;
  std::uint64_t offset = 0;  // of what has not been read
};

/// An exchange.
struct Exchange {
  TimePoint arrival{};
  Caller caller;
  std::optional<openai::ResponseBuilder> response;  // while generating
  std::vector<SampleId> choices;                    // their ids
  bool streaming = false;                           // the head of the response has been sent
  std::optional<Download> download;
  std::size_t download_bytes = 0;  // held of `GatewayState::download_bytes`
};

/// A choice that is generated.
struct Choice {
  ExchangeId exchange = 0;
  std::size_t index = 0;
  std::size_t prompt_tokens = 0;
  TimePoint last_token{};  // or, before the first token, the arrival of the request
  bool has_token = false;
};

struct GatewayState {
  static inline const char* name = "gateway";
  GatewayState() = default;  // not an aggregate: CAF would build it from `self`

  GatewayDeps deps;
  std::map<ExchangeId, Exchange> exchanges;
  std::map<ExchangeId, std::shared_ptr<GatewayWork>> work;
  std::map<SampleId, Choice> choices;
  std::shared_ptr<GatewayMetrics> metrics;
  std::uint64_t last_sample = 0;
  Tenancy tenancy = Tenancy::kOne;
  FairLimit pending_choices;
  FairLimit pending_prompt_bytes;  // of the choices
  FairLimit pending_body_bytes;    // not parsed yet
  FairLimit pending_upload_bytes;  // at the file port
  FairLimit download_bytes;        // of parts of files
  ParseLanes<ExchangeId> to_parse;
  bool draining = false;
};

/// Returns the bytes of the token ids of a prompt.
[[nodiscard]] constexpr std::size_t prompt_bytes(std::size_t tokens) noexcept {
  return tokens * sizeof(std::int32_t);
}

/// Responds with 429, because a limit would be exceeded.
void refuse_too_many(GatewaySelf self, ExchangeId id);

/// Forgets a choice that has ended or is cancelled. Returns whether it existed.
bool forget_choice(GatewayState& state, SampleId sample);

/// Forgets an exchange and cancels what is generated for it.
void end_exchange(GatewaySelf self, ExchangeId id);

/// Responds, and ends the exchange.
void respond(GatewaySelf self, ExchangeId id, HttpResponse response);

/// Responds with an error, also in a stream that has begun, and ends the exchange.
void fail(GatewaySelf self, ExchangeId id, const openai::ApiError& error);

/// Makes a step that responds, or one that fails.
[[nodiscard]] NextStep respond_with(HttpResponse response);
[[nodiscard]] NextStep fail_with(openai::ApiError error);

/// Runs `function` on the body of a request at a parse port, and then the step that it returns.
/// Refuses a body that is not JSON, or is too large together with the others.
void work_on_json(GatewaySelf self, HttpRequest& request, PortFunction function);

/// Runs `function` on the body of a request, which may be empty, at the file port, and then the
/// step that it returns. Refuses a body that is too large together with the others.
void work_on_files(GatewaySelf self, HttpRequest& request, PortFunction function);
/// Does the same without a body.
void work_on_files(GatewaySelf self, ExchangeId id, std::function<NextStep()> function);

/// Goes on after a port has run the work of an exchange.
void on_worked(GatewaySelf self, ExchangeId id);

}  // namespace tidemill::actors
