// SPDX-License-Identifier: Apache-2.0
// Private to actors/gateway/http/. The bytes of responses, and the responses with which the HTTP
// server refuses a request itself.
#pragma once

#include <cstdint>
#include <string>

#include "actors/gateway/http/http_message.hpp"

namespace tidemill::actors {

/// How the body of a response ends, and what happens to its connection.
struct ResponseFraming {
  std::string length;  // value of Content-Length; empty: unknown
  bool chunked = false;
  bool keep_alive = false;
  bool is_http_1_0 = false;  // the client speaks HTTP/1.0
};

/// Returns the head of a response, with the empty line after it.
[[nodiscard]] std::string head_text(const HttpResponse& response, const ResponseFraming& framing);

/// Returns a part of a chunked body.
[[nodiscard]] std::string chunk_text(const std::string& part);

/// Returns an error in the form of OpenAI's API. `why` is inserted into JSON unescaped: it must not
/// contain quotes, backslashes or control characters.
[[nodiscard]] HttpResponse refusal(std::uint32_t status, const std::string& why);

}  // namespace tidemill::actors
