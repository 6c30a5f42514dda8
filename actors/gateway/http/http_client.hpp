// SPDX-License-Identifier: Apache-2.0
// A client for HTTP/1.1 whose calls wait, with a deadline for everything that it waits for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "actors/gateway/http/http_message.hpp"
#include "base/clock.hpp"
#include "base/result.hpp"

namespace tidemill::actors {

/// The address of a server and the path that precedes those of its requests.
struct HttpUrl {
  std::string host;  // a name, an IPv4 address, or an IPv6 address without brackets
  std::uint16_t port = 80;
  std::string path;  // "" or "/v1": without the slash at its end

  /// Returns "HOST:PORT", with brackets around an IPv6 address.
  [[nodiscard]] std::string authority() const;
};

/// Parses `http://HOST[:PORT][/PATH]`.
/// Errors: `kInvalidArgument` naming the URL, for other schemes too, and if it has a user, a query
/// or a fragment.
[[nodiscard]] Result<HttpUrl> parse_http_url(std::string_view text);

/// The limits of a client.
struct HttpClientLimits {
  Duration connect_time = std::chrono::seconds(10);     // name resolution included
  Duration first_byte_time = std::chrono::seconds(60);  // of the response, from the request's end
  Duration gap_time = std::chrono::seconds(60);         // between two bytes, in both directions
  std::size_t max_header_bytes = std::size_t{64} << 10U;
  std::size_t max_body_bytes = std::size_t{256} << 20U;
};

/// A request and what becomes of its response.
struct HttpCall {
  std::string method = "GET";
  std::string path;  // follows that of the URL: "/models"
  std::vector<HttpHeader> headers;
  std::string body;  // must be empty for GET, which sends no Content-Length
  /// Called with each part of the body of a response with status 200, which the result then lacks.
  /// If it is empty, the result has the body.
  std::function<void(std::string_view)> on_part = {};
  /// Asked 20 times a second and after each part. If it returns true, the call closes the
  /// connection and returns what it has. May be empty.
  std::function<bool()> is_cancelled = {};
};

/// What has arrived of a response.
struct HttpReply {
  HttpResponse response;
  bool cancelled = false;  // `is_cancelled` ended the call
};

/// A client of one server. It keeps its connection for the next GET request if the server does, and
/// sends such a request again if the server closes that connection without a response.
///
/// Threads: one at a time. Calls wait; `HttpCall::on_part` runs on the caller's thread.
class HttpClient {
public:
  explicit HttpClient(HttpUrl url, const HttpClientLimits& limits = {});
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;
  ~HttpClient();

  [[nodiscard]] const HttpUrl& url() const noexcept { return url_; }

  /// Sends a request and receives its response, whatever its status.
  /// Errors, which name the address: `kUnavailable` (cannot connect; the connection ended before
  /// the response did), `kTimeout`, `kCorruptData` (not HTTP, or beyond a limit),
  /// `kInvalidArgument` (a control character in the path or a header).
  [[nodiscard]] Result<HttpReply> call(const HttpCall& call);

private:
  class Connection;

  // Keeps the connection, if the server does, and returns `reply`.
  HttpReply finish(std::unique_ptr<Connection> connection, HttpReply reply);

  HttpUrl url_;
  HttpClientLimits limits_;
  std::unique_ptr<Connection> connection_;
};

}  // namespace tidemill::actors
