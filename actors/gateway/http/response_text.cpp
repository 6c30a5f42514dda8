// SPDX-License-Identifier: Apache-2.0
#include "actors/gateway/http/response_text.hpp"

#include <array>
#include <ctime>

#include "actors/gateway/http/http_server.hpp"

namespace tidemill::actors {
namespace {

// Returns the value of a Date header.
std::string http_date() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  std::array<char, 40> text{};
  const std::size_t size =
      std::strftime(text.data(), text.size(), "%a, %d %b %Y %H:%M:%S GMT", &utc);
  return {text.data(), size};
}

}  // namespace

std::string head_text(const HttpResponse& response, const ResponseFraming& framing) {
  std::string text = "HTTP/1.1 " + std::to_string(response.status) + " " +
                     reason_phrase(response.status) + "\r\ndate: " + http_date() + "\r\n";
  for (const HttpHeader& header : response.headers) {
    text += header.name + ": " + header.value + "\r\n";
  }
  if (!framing.length.empty()) {
    text += "content-length: " + framing.length + "\r\n";
  } else if (framing.chunked) {
    text += "transfer-encoding: chunked\r\n";
  }
  if (!framing.keep_alive) {
    text += "connection: close\r\n";
  } else if (framing.is_http_1_0) {
    text += "connection: keep-alive\r\n";
  }
  return text + "\r\n";
}

std::string chunk_text(const std::string& part) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string size;
  for (std::size_t rest = part.size(); rest > 0; rest /= 16) {
    size.insert(size.begin(), kDigits[rest % 16]);
  }
  return size + "\r\n" + part + "\r\n";
}

HttpResponse refusal(std::uint32_t status, const std::string& why) {
  const bool is_overload = status == 503;
  HttpResponse response;
  response.status = status;
  response.headers = {{"content-type", "application/json"}};
  if (is_overload) {
    response.headers.push_back({"retry-after", "1"});
  }
  response.body = R"({"error": {"message": ")" + why + R"(", "type": ")" +
                  (is_overload ? "server_error" : "invalid_request_error") +
                  R"(", "param": null, "code": null}})";
  return response;
}

}  // namespace tidemill::actors
