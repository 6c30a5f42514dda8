// SPDX-License-Identifier: Apache-2.0
// Chats with a server of OpenAI's chat completions API.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.hpp"
#include "launcher/chat/chat_peer.hpp"

namespace tidemill::launcher {

/// The server and what its requests say. Options that are not set are left to the server.
struct RemoteChatOptions {
  std::string url;                               // http://HOST:PORT, with or without /v1
  std::string model;                             // "": the first that the server lists
  std::string api_key;                           // "": none
  Duration timeout = std::chrono::seconds(300);  // for the next bytes of a response
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<std::uint64_t> seed;
  std::optional<std::int64_t> max_tokens;
};

/// Asks a server for its models. Responses are streamed.
/// Errors: `kInvalidArgument` for the URL; those of `HttpClient::call`; `kUnavailable` with the
/// address, the status and the server's message if it refuses the request; `kNotFound` with the
/// list of models if it has no such model.
[[nodiscard]] Result<std::unique_ptr<ChatPeer>> open_remote_chat(const RemoteChatOptions& options);

}  // namespace tidemill::launcher
