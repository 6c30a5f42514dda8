// SPDX-License-Identifier: Apache-2.0
// The interface of an HTTP/1.1 server: callbacks receive requests, and calls send responses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "actors/gateway/fair_limit.hpp"
#include "actors/gateway/http/http_message.hpp"
#include "base/clock.hpp"
#include "base/result.hpp"

namespace tidemill::actors {

/// The callbacks of a server.
///
/// Threads: called on the thread of the server. A call must not wait.
struct HttpCallbacks {
  /// Called with each request that has arrived completely. Must be set.
  std::function<void(HttpRequest)> on_request;
  /// Called when the head of a request is complete; `exchange` is 0 and `body` is empty. If it
  /// returns a response, the server sends it, discards the body and closes the connection. May be
  /// empty.
  std::function<std::optional<HttpResponse>(const HttpRequest&)> check_head;
  /// Called after `check_head`. Returns how long the body of this request may be. If it is longer
  /// than `HttpLimits::max_body_bytes`, the request counts as a large one. May be empty:
  /// `max_body_bytes` for all requests.
  std::function<std::size_t(const HttpRequest&)> max_body;
  /// Called after `check_head`. Returns the tenant that is charged for the body of this request,
  /// and for the part of its response that has not been sent yet. May be empty: one tenant is
  /// charged for everything.
  std::function<std::string(const HttpRequest&)> tenant_of;
  /// Called each time everything that has been written of an unfinished `start_body` response has
  /// been sent. May be empty.
  std::function<void(ExchangeId)> on_sent;
  /// Called if the connection closes before the response is complete: because the client closed it,
  /// a limit was exceeded, or `end` was called before all bytes of a `start_body` response were
  /// written. Later calls for the exchange do nothing. Must be set.
  std::function<void(ExchangeId)> on_closed;
};

/// A server.
///
/// Every request gets one response. The caller sends it with one `respond`, or with `start_stream`
/// or `start_body`, followed by any number of `write` and one `end`. A call for an exchange that
/// has ended, or whose client has closed its connection, does nothing.
///
/// Threads: may be called from any thread. Only `flush` waits.
class HttpServer {
public:
  HttpServer() = default;
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  virtual ~HttpServer() = default;

  /// Starts the server's thread, which accepts connections. Call it once.
  /// Errors: `kResourceExhausted` if the thread cannot be started.
  [[nodiscard]] virtual Status start(HttpCallbacks callbacks) = 0;

  /// Sends a complete response.
  virtual void respond(ExchangeId exchange, HttpResponse response) = 0;
  /// Sends the head of a response whose body follows in parts. `head.body` is its first part.
  virtual void start_stream(ExchangeId exchange, HttpResponse head) = 0;
  /// Sends the head of a response whose body of `length` bytes follows in parts. Calls
  /// `HttpCallbacks::on_sent` each time the head and the parts so far have been sent, so that the
  /// caller can produce the next part only then. If `end` is called before `length` bytes were
  /// written, the server closes the connection. `head.body` must be empty.
  virtual void start_body(ExchangeId exchange, HttpResponse head, std::uint64_t length) = 0;
  /// Sends the next part of a body. If the client reads so slowly that
  /// `HttpLimits::max_unsent_bytes` are waiting, its connection is closed.
  virtual void write(ExchangeId exchange, std::string part) = 0;
  /// Ends a body.
  virtual void end(ExchangeId exchange) = 0;

  /// Waits up to `limit` until all responses have been sent. Returns whether they have.
  virtual bool flush(Duration limit) = 0;

  /// Returns the TCP port on which the server listens.
  [[nodiscard]] virtual std::uint16_t port() const = 0;
  /// Accepts no more connections. Responds to the next request of each open one with 503, and
  /// closes it after that or, if a request is in progress, after its response.
  virtual void stop_accepting() = 0;
};

/// The limits of a server. A request that exceeds one gets a response with the matching status
/// (408, 413, 431, 503), and its connection is closed. If there is no request, or the client does
/// not read its response, the connection is closed without one.
struct HttpLimits {
  std::size_t max_header_bytes = std::size_t{16} << 10U;  // request line and headers
  std::size_t max_headers = 100;
  std::size_t max_body_bytes = std::size_t{64} << 20U;
  /// The bodies of all requests together, from their arrival to the end of the exchange. With
  /// several tenants, the limit is shared dynamically (fair_limit.hpp); each body counts as one
  /// amount.
  std::size_t max_buffered_bytes = std::size_t{256} << 20U;
  /// The bodies of all large requests together, which do not count above. If the declared length of
  /// a body does not fit, the request is refused at once; but only what has arrived counts.
  std::size_t max_large_buffered_bytes = std::size_t{768} << 20U;
  Tenancy tenancy = Tenancy::kOne;
  std::size_t max_unsent_bytes = std::size_t{8} << 20U;  // of one stream
  /// Of all responses together. The first 64 KiB of a connection do not count. With several
  /// tenants, the limit is shared dynamically. A response that exceeds it is replaced by one with
  /// status 503; in the middle of a stream, the connection is closed.
  std::size_t max_total_unsent_bytes = std::size_t{256} << 20U;
  std::size_t max_connections = 4096;
  /// How many connections beyond `max_connections` stay open at a time, for their response with
  /// status 503. Further ones are closed at once, without a response.
  std::size_t max_refused_connections = 64;
  Duration header_time = std::chrono::seconds(10);  // from the first byte of a request
  /// From the end of the headers. Each `min_body_rate` bytes of the body add a second, but no more
  /// than `body_time` is ever left.
  Duration body_time = std::chrono::seconds(20);
  std::size_t min_body_rate = std::size_t{64} << 10U;  // bytes per second
  Duration idle_time = std::chrono::seconds(75);       // without a request
  Duration write_time = std::chrono::seconds(30);      // without progress
  /// For the client to read the last response of a connection.
  Duration linger_time = std::chrono::seconds(2);
};

/// Where a server listens.
struct HttpAddress {
  std::string host = "127.0.0.1";  // an IP address
  std::uint16_t port = 0;          // 0: any free port
};

/// Opens a server for HTTP/1.0 and HTTP/1.1 that listens at `address`. One connection has one
/// exchange at a time; further requests of the client wait. The destructor closes all connections.
/// Errors: `kInvalidArgument` (not an IP address), `kUnavailable` naming the address (in use, or
/// not an address of this host).
[[nodiscard]] Result<std::unique_ptr<HttpServer>> open_http_server(const HttpAddress& address,
                                                                   const HttpLimits& limits);

/// Returns the reason phrase of a status code, or "".
[[nodiscard]] const char* reason_phrase(std::uint32_t status) noexcept;

}  // namespace tidemill::actors
