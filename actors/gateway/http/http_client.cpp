// SPDX-License-Identifier: Apache-2.0
// Asio has no operations that wait with a deadline. A call therefore starts an asynchronous
// operation and runs the context until it has ended, in slices of `kSlice`, between which it looks
// at the deadline and at the caller's wish to cancel.
#include "actors/gateway/http/http_client.hpp"

#include <algorithm>
#include <array>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <charconv>
#include <optional>
#include <sys/socket.h>
#include <utility>

#include "base/text/clip.hpp"
#include "base/text/utf8.hpp"

namespace tidemill::actors {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using Parser = http::response_parser<http::string_body>;

constexpr auto kSlice = std::chrono::milliseconds(50);
constexpr std::size_t kReadBytes = std::size_t{16} << 10U;
constexpr int kMaxInterimResponses = 16;

TimePoint now() {
  return std::chrono::time_point_cast<Duration>(std::chrono::steady_clock::now());
}

std::string seconds_text(Duration time) {
  const auto tenths = std::chrono::duration_cast<std::chrono::milliseconds>(time).count() / 100;
  return std::to_string(tenths / 10) + (tenths % 10 == 0 ? "" : "." + std::to_string(tenths % 10)) +
         " s";
}

}  // namespace

class HttpClient::Connection {
public:
  Connection(const HttpUrl& url, const HttpClientLimits& limits)
      : url_(url), limits_(limits), socket_(io_) {}

  [[nodiscard]] Status connect(const HttpCall& call, HttpReply& reply) {
    const Status status = connect(call);
    reply.cancelled = cancelled_;
    return cancelled_ ? Status() : status;
  }

  // Sends a request and receives the response.
  [[nodiscard]] Status exchange(const std::string& bytes, const HttpCall& call, HttpReply& reply) {
    has_bytes_ = false;
    Status status = send(bytes, call);
    if (status.ok()) {
      status = receive(call, reply);
    }
    reply.cancelled = cancelled_;
    keeps_ = keeps_ && status.ok() && !cancelled_;
    return cancelled_ ? Status() : status;
  }

  // Whether the server has neither closed the connection nor sent what nothing asked for.
  [[nodiscard]] bool is_idle() {
    char byte = 0;
    return buffer_.size() == 0 &&
           ::recv(socket_.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0;
  }

  [[nodiscard]] bool keeps() const noexcept { return keeps_; }
  [[nodiscard]] bool has_bytes() const noexcept { return has_bytes_; }

private:
  [[nodiscard]] Status failed(const std::string& what) const {
    return {Errc::kUnavailable, url_.authority() + ": " + what};
  }
  [[nodiscard]] Status corrupt(const std::string& what) const {
    return corrupt_data(url_.authority() + ": " + what);
  }

  void set_deadline(Duration limit) {
    limit_ = limit;
    deadline_ = now() + limit;
  }

  // Runs operations until `done` has a value. The socket is closed if it gets none in time.
  [[nodiscard]] Status wait(const std::optional<error_code>& done, const HttpCall& call,
                            const std::string& what) {
    while (!done.has_value()) {
      io_.restart();
      io_.run_one_for(std::min<Duration>(kSlice, std::max(deadline_ - now(), Duration::zero())));
      if (done.has_value()) {
        break;
      }
      cancelled_ = call.is_cancelled && call.is_cancelled();
      if (cancelled_ || now() >= deadline_) {
        error_code ignored;
        socket_.close(ignored);
        while (!done.has_value() && io_.run_one() > 0) {
        }
        return cancelled_ ? Status(Errc::kUnavailable, "cancelled")
                          : Status(Errc::kTimeout, url_.authority() + ": " + what + " within " +
                                                       seconds_text(limit_));
      }
    }
    return {};
  }

  [[nodiscard]] Status connect(const HttpCall& call) {
    set_deadline(limits_.connect_time);
    error_code error;
    std::vector<tcp::endpoint> endpoints;
    if (const auto address = asio::ip::make_address(url_.host, error); !error) {
      endpoints.emplace_back(address, url_.port);
    } else {
      // The system's resolver has limits of its own, which may be longer.
      tcp::resolver resolver(io_);
      std::optional<error_code> resolved;
      resolver.async_resolve(url_.host, std::to_string(url_.port),
                             [&](const error_code& why, const tcp::resolver::results_type& found) {
                               resolved = why;
                               endpoints.assign(found.begin(), found.end());
                             });
      TIDEMILL_RETURN_IF_ERROR(wait(resolved, call, "the name was not resolved"));
      if (*resolved) {
        return failed("cannot resolve the name: " + resolved->message());
      }
    }
    std::optional<error_code> connected;
    asio::async_connect(socket_, endpoints,
                        [&](const error_code& why, const tcp::endpoint&) { connected = why; });
    TIDEMILL_RETURN_IF_ERROR(wait(connected, call, "no connection"));
    if (*connected) {
      return failed("cannot connect: " + connected->message());
    }
    socket_.set_option(tcp::no_delay(true), error);
    return {};
  }

  [[nodiscard]] Status send(const std::string& bytes, const HttpCall& call) {
    for (std::size_t sent = 0; sent < bytes.size();) {
      set_deadline(limits_.gap_time);
      std::optional<error_code> written;
      socket_.async_write_some(asio::buffer(bytes.data() + sent, bytes.size() - sent),
                               [&](const error_code& why, std::size_t size) {
                                 written = why;
                                 sent += size;
                               });
      TIDEMILL_RETURN_IF_ERROR(wait(written, call, "the request was not read"));
      // A server may respond before it has read the request, and then close the connection.
      if (*written) {
        break;
      }
    }
    set_deadline(limits_.first_byte_time);
    return {};
  }

  // Receives a response into `reply`.
  [[nodiscard]] Status receive(const HttpCall& call, HttpReply& reply) {
    for (int i = 0; i < kMaxInterimResponses; ++i) {
      Parser parser;
      parser.eager(true);
      parser.header_limit(static_cast<std::uint32_t>(limits_.max_header_bytes));
      parser.body_limit(limits_.max_body_bytes);
      TIDEMILL_RETURN_IF_ERROR(receive_one(parser, call, reply));
      if (reply.cancelled || reply.response.status >= 200) {
        keeps_ = parser.get().keep_alive();
        return {};
      }
    }
    return corrupt("too many interim responses");
  }

  // Takes over what the parser has of the response.
  void take(Parser& parser, const HttpCall& call, HttpReply& reply) {
    if (!parser.is_header_done()) {
      return;
    }
    auto& message = parser.get();
    if (!has_head_) {
      has_head_ = true;
      reply.response = {};
      reply.response.status = message.result_int();
      for (const auto& field : message) {
        reply.response.headers.push_back(
            {lower_case({field.name_string().data(), field.name_string().size()}),
             std::string(field.value().data(), field.value().size())});
      }
    }
    if (call.on_part && reply.response.status == 200) {
      if (!message.body().empty()) {
        call.on_part(message.body());
        message.body().clear();
      }
    } else {
      reply.response.body += message.body();
      message.body().clear();
    }
  }

  // Reads more of the response. Returns false at the end of the connection.
  [[nodiscard]] Result<bool> read(const HttpCall& call) {
    std::optional<error_code> ended;
    std::size_t count = 0;
    socket_.async_read_some(asio::buffer(incoming_), [&](const error_code& why, std::size_t size) {
      ended = why;
      count = size;
    });
    TIDEMILL_RETURN_IF_ERROR(
        wait(ended, call, has_bytes_ ? "the response stopped: nothing arrived" : "no response"));
    set_deadline(limits_.gap_time);
    has_bytes_ = has_bytes_ || count > 0;
    buffer_.commit(asio::buffer_copy(buffer_.prepare(count), asio::buffer(incoming_, count)));
    if (*ended && *ended != asio::error::eof && *ended != asio::error::connection_reset) {
      return failed(ended->message());
    }
    return !*ended;
  }

  [[nodiscard]] Status receive_one(Parser& parser, const HttpCall& call, HttpReply& reply) {
    has_head_ = false;
    has_bytes_ = has_bytes_ || buffer_.size() > 0;
    bool open = true;
    while (!parser.is_done()) {
      error_code error;
      if (buffer_.size() > 0) {
        buffer_.consume(parser.put(buffer_.data(), error));
      } else if (!open) {
        if (!parser.got_some()) {
          return failed("the server closed the connection without a response");
        }
        parser.put_eof(error);
        if (error || !parser.is_done()) {
          return failed("the connection ended before the response did");
        }
      }
      take(parser, call, reply);
      if (error && error != http::error::need_more) {
        return corrupt("the response is not valid HTTP, or too large: " + error.message());
      }
      if (call.is_cancelled && call.is_cancelled()) {
        cancelled_ = reply.cancelled = true;
        return {};
      }
      if (parser.is_done()) {
        break;
      }
      if (!open && error == http::error::need_more) {
        return failed("the connection ended before the response did");
      }
      if (open && (error == http::error::need_more || buffer_.size() == 0)) {
        TIDEMILL_ASSIGN_OR_RETURN(open, read(call));
      }
    }
    return {};
  }

  const HttpUrl& url_;
  const HttpClientLimits& limits_;
  asio::io_context io_{1};
  tcp::socket socket_;
  Duration limit_{};  // of the current wait
  TimePoint deadline_{};
  std::array<char, kReadBytes> incoming_{};
  beast::flat_buffer buffer_;  // received, not parsed yet
  bool has_head_ = false;      // of the response: the reply has its head
  bool has_bytes_ = false;     // of the response: something has arrived
  bool keeps_ = false;
  bool cancelled_ = false;
};

std::string HttpUrl::authority() const {
  return (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" +
         std::to_string(port);
}

Result<HttpUrl> parse_http_url(std::string_view text) {
  constexpr std::string_view kScheme = "http://";
  const auto refused = [&](const std::string& why) {
    return invalid_argument(clipped(text) + ": " + why);
  };
  if (lower_case(text.substr(0, 8)) == "https://") {
    return refused("https is not supported; connect to a local proxy that encrypts, by http://");
  }
  if (lower_case(text.substr(0, kScheme.size())) != kScheme) {
    return refused("must begin with http://");
  }
  if (has_control(text) || text.find_first_of(" ?#@\\") != std::string_view::npos) {
    return refused("must be http://HOST:PORT or http://HOST:PORT/PATH");
  }
  const std::string_view rest = text.substr(kScheme.size());
  const std::size_t slash = std::min(rest.find('/'), rest.size());
  std::string_view address = rest.substr(0, slash);
  HttpUrl url;
  url.path = rest.substr(slash);
  while (url.path.ends_with('/')) {
    url.path.pop_back();
  }
  std::string_view port;
  if (address.starts_with('[')) {
    const std::size_t end = address.find(']');
    if (end == std::string_view::npos) {
      return refused("the host lacks a closing bracket");
    }
    url.host = address.substr(1, end - 1);
    port = address.substr(end + 1);
  } else {
    const std::size_t colon = std::min(address.find(':'), address.size());
    url.host = address.substr(0, colon);
    port = address.substr(colon);
  }
  if (url.host.empty()) {
    return refused("has no host");
  }
  if (!port.empty()) {
    const char* end = port.data() + port.size();
    const auto [parsed, error] = std::from_chars(port.data() + 1, end, url.port);
    if (port.front() != ':' || parsed != end || error != std::errc() || url.port == 0) {
      return refused("the port must be a number from 1 to 65535");
    }
  }
  return url;
}

HttpClient::HttpClient(HttpUrl url, const HttpClientLimits& limits)
    : url_(std::move(url)), limits_(limits) {}
HttpClient::~HttpClient() = default;

HttpReply HttpClient::finish(std::unique_ptr<Connection> connection, HttpReply reply) {
  if (connection->keeps()) {
    connection_ = std::move(connection);
  }
  return reply;
}

Result<HttpReply> HttpClient::call(const HttpCall& call) {
  std::string bytes =
      call.method + " " + url_.path + call.path + " HTTP/1.1\r\nhost: " + url_.authority() + "\r\n";
  bool unprintable = has_control(url_.path + call.path + call.method);
  for (const HttpHeader& header : call.headers) {
    unprintable = unprintable || has_control(header.name) || has_control(header.value);
    bytes += header.name + ": " + header.value + "\r\n";
  }
  if (unprintable) {
    return invalid_argument(url_.authority() +
                            ": a header or the path has a control character, such as a line end");
  }
  if (call.method != "GET") {
    bytes += "content-length: " + std::to_string(call.body.size()) + "\r\n";
  }
  bytes += "\r\n" + call.body;

  // Connections are kept for GET only: if the server closes one at this moment, whether it has seen
  // the request is unknown, and only a GET request may be sent again (RFC 9110, section 9.2.2).
  std::unique_ptr<Connection> connection = std::move(connection_);
  HttpReply reply;
  if (connection != nullptr && call.method == "GET" && connection->is_idle()) {
    const Status status = connection->exchange(bytes, call, reply);
    if (status.ok() || connection->has_bytes()) {
      TIDEMILL_RETURN_IF_ERROR(status);
      return finish(std::move(connection), std::move(reply));
    }
  }
  connection = std::make_unique<Connection>(url_, limits_);
  Status status = connection->connect(call, reply);
  if (status.ok() && !reply.cancelled) {
    status = connection->exchange(bytes, call, reply);
  }
  TIDEMILL_RETURN_IF_ERROR(status);
  return finish(std::move(connection), std::move(reply));
}

}  // namespace tidemill::actors
