// SPDX-License-Identifier: Apache-2.0
// The HTTP server on Boost.Asio, with the parser of Boost.Beast. Only http_client.cpp includes them
// too.
//
// All members of a connection run on the server's thread. A connection is in one of these states:
//
//   kIdle      no byte of the next request has arrived. Waits for `idle_time`.
//   kHead      a part of the head has arrived. Waits for `header_time`.
//   kBody      the head is complete. Waits for `body_time`, and longer for a long body.
//   kExchange  the request has been passed on, or refused. Waits without a limit for the response,
//              and for `write_time` for the client to read it. Goes on reading, to notice that the
//              client closes the connection, until it holds some kilobytes of later requests.
//   kLinger    the last response has been sent. Discards what the client still sends, so that the
//              client can read the response before the connection is reset.
#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/buffers_range.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <deque>
#include <future>
#include <limits>
#include <optional>
#include <pthread.h>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "actors/gateway/http/head_check.hpp"
#include "actors/gateway/http/http_server.hpp"
#include "actors/gateway/http/response_text.hpp"

namespace tidemill::actors {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

constexpr auto kNoLimit = std::numeric_limits<std::uint64_t>::max();
constexpr std::size_t kReadBytes = std::size_t{16} << 10U;
// A connection that holds so much of later requests reads no more during an exchange.
constexpr std::size_t kMaxReadAhead = std::size_t{16} << 10U;
// Of a large body, when the rest is reserved.
constexpr std::size_t kMinReservingBytes = std::size_t{1} << 20U;
// What a connection has to send counts for the limit of all connections from here on.
constexpr std::size_t kUncountedBytes = std::size_t{64} << 10U;
constexpr std::size_t kMaxDiscarded = std::size_t{4} << 20U;

/// A body that takes memory as it arrives and not as its declared length says.
struct GrowingBody {
  using value_type = std::string;  // NOLINT(readability-identifier-naming): Beast's name

  class reader {  // NOLINT(readability-identifier-naming): Beast's name
  public:
    template <bool is_request, class Fields>
    reader(http::header<is_request, Fields>& /*head*/, value_type& body) : body_(body) {}
    void init(const boost::optional<std::uint64_t>& /*length*/, error_code& error) { error = {}; }
    template <class Buffers>
    std::size_t put(const Buffers& buffers, error_code& error) {
      error = {};
      std::size_t size = 0;
      for (const asio::const_buffer part : beast::buffers_range_ref(buffers)) {
        body_.append(static_cast<const char*>(part.data()), part.size());
        size += part.size();
      }
      return size;
    }
    void finish(error_code& error) { error = {}; }

  private:
    value_type& body_;
  };
};

using Parser = http::request_parser<GrowingBody>;

std::string_view view(beast::string_view text) {
  return {text.data(), text.size()};
}

TimePoint now() {
  return std::chrono::time_point_cast<Duration>(std::chrono::steady_clock::now());
}

class Connection;

// What the connections of a server share.
struct Shared {
  HttpLimits limits;
  HttpCallbacks callbacks;
  std::unordered_map<ExchangeId, Connection*> exchanges;
  std::unordered_set<std::shared_ptr<Connection>> connections;
  FairLimit body_bytes;        // of requests
  FairLimit large_body_bytes;  // of large requests
  FairLimit unsent_bytes;      // of responses, see `kUncountedBytes`
  ExchangeId last_exchange = 0;
  bool stopping = false;
};

class Connection : public std::enable_shared_from_this<Connection> {
public:
  Connection(tcp::socket socket, Shared& shared)
      : socket_(std::move(socket)), timer_(socket_.get_executor()), shared_(shared) {}

  void start() {
    error_code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    next_request();
  }

  // Answers the first request with 503, whatever it is.
  void refuse_all() {
    state_ = State::kExchange;
    refuse(503, "the server has too many connections");
  }

  void respond(const HttpResponse& response) {
    if (started_ || finishing_) {
      return;
    }
    // 304 has no body, and a length would be that of the body with status 200.
    std::string bytes =
        head(response, response.status == 304 ? "" : std::to_string(response.body.size()));
    if (!is_head_request_) {
      bytes += response.body;
    }
    if (!hold_unsent(unsent_ + bytes.size())) {
      keep_alive_ = false;
      respond(refusal(503, "too much of earlier responses has not been read"));
      return;
    }
    started_ = true;
    finishing_ = true;
    send(std::move(bytes));
  }

  void start_stream(const HttpResponse& response) {
    if (started_ || finishing_) {
      return;
    }
    started_ = true;
    chunked_ = version_ >= 11;
    keep_alive_ = keep_alive_ && chunked_;
    std::string bytes = head(response, "");
    if (!response.body.empty()) {
      bytes += chunked_ ? chunk_text(response.body) : response.body;
    }
    send(std::move(bytes));
  }

  void start_body(const HttpResponse& response, std::uint64_t length) {
    if (started_ || finishing_) {
      return;
    }
    started_ = true;
    unwritten_ = length;
    reports_ = true;
    send(head(response, std::to_string(length)));
  }

  void write(std::string part) {
    if (!started_ || finishing_ || part.empty()) {
      return;
    }
    if (reports_) {
      unwritten_ -= std::min<std::uint64_t>(unwritten_, part.size());
    }
    if (unsent_ > shared_.limits.max_unsent_bytes) {
      abort();
      return;
    }
    send(chunked_ ? chunk_text(part) : std::move(part));
  }

  void end() {
    if (!started_ || finishing_) {
      return;
    }
    if (unwritten_ > 0) {
      abort();  // the client must not take the body for complete
      return;
    }
    finishing_ = true;
    if (chunked_) {
      send("0\r\n\r\n");
    } else if (!writing_) {
      end_exchange();
    }
  }

  // Closes the connection. Its object lives until its pending operations have been called.
  void abort() {
    if (state_ == State::kClosed) {
      return;
    }
    const ExchangeId closed = exchange_;
    release_exchange();
    state_ = State::kClosed;
    held_unsent_.give_back();
    error_code ignored;
    socket_.close(ignored);
    timer_.cancel();
    shared_.connections.erase(shared_from_this());
    if (closed != 0) {
      shared_.callbacks.on_closed(closed);
    }
  }

  [[nodiscard]] bool has_unsent() const noexcept { return exchange_ != 0 || unsent_ > 0; }

private:
  enum class State : std::uint8_t { kIdle, kHead, kBody, kExchange, kLinger, kClosed };

  void next_request() {
    state_ = State::kIdle;
    parser_.emplace();
    // The body, and fields after it, are read only once the head has been accepted.
    parser_->eager(false);
    parser_->header_limit(static_cast<std::uint32_t>(shared_.limits.max_header_bytes));
    parser_->body_limit(kNoLimit);  // known once the head is
    started_ = finishing_ = chunked_ = is_head_request_ = reports_ = is_large_ = false;
    unwritten_ = 0;
    wait(shared_.limits.idle_time);
    if (buffer_.size() > 0) {
      parse();
    } else {
      read();
    }
  }

  void read() {
    if (reading_ || state_ == State::kClosed) {
      return;
    }
    reading_ = true;
    socket_.async_read_some(asio::buffer(incoming_),
                            [self = shared_from_this()](const error_code& error, std::size_t size) {
                              self->reading_ = false;
                              self->on_read(error, size);
                            });
  }

  // Goes on reading during an exchange, to notice that the client closes the connection.
  void read_ahead() {
    if (buffer_.size() < kMaxReadAhead) {
      read();
    }
  }

  void on_read(const error_code& error, std::size_t size) {
    if (error || state_ == State::kClosed) {
      abort();
      return;
    }
    // Not read into `buffer_` directly, because the next request may be parsed from it meanwhile.
    buffer_.commit(asio::buffer_copy(buffer_.prepare(size), asio::buffer(incoming_, size)));
    switch (state_) {
      case State::kExchange: read_ahead(); break;
      case State::kLinger:
        discarded_ += buffer_.size();
        buffer_.consume(buffer_.size());
        discarded_ > kMaxDiscarded ? abort() : read();
        break;
      default: parse();
    }
  }

  void parse() {
    if (state_ == State::kIdle) {
      state_ = State::kHead;
      wait(shared_.limits.header_time);
    }
    while (state_ == State::kHead || state_ == State::kBody) {
      error_code error;
      const std::size_t before = parser_->get().body().size();
      const std::size_t used = parser_->put(buffer_.data(), error);
      buffer_.consume(used);
      const std::size_t arrived = parser_->get().body().size() - before;
      if (error && error != http::error::need_more) {
        refuse_syntax(error);
        return;
      }
      if (state_ == State::kHead && parser_->is_header_done()) {
        if (!accept_head()) {
          return;
        }
        parser_->eager(true);
      }
      // Extensions of chunks, and fields after the last one, stay in the buffer until they end.
      if (error == http::error::need_more && buffer_.size() > shared_.limits.max_header_bytes) {
        refuse(431, "a chunk's head or the fields after the body are too long");
        return;
      }
      if (!count_body(arrived)) {
        return;
      }
      if (parser_->is_done()) {
        pass_on();
        return;
      }
      if (error == http::error::need_more || buffer_.size() == 0) {
        read();
        return;
      }
    }
  }

  // Counts a part of the body that has arrived, which extends the deadline. Returns false after a
  // refusal.
  [[nodiscard]] bool count_body(std::size_t size) {
    if (size == 0) {
      return true;
    }
    if (!held_.resize(held_.size() + size) || !reserve_body()) {
      refuse_load();
      return false;
    }
    if (state_ == State::kBody) {
      const auto rate = std::max<std::size_t>(shared_.limits.min_body_rate, 1);
      body_deadline_ = std::min(body_deadline_ + std::chrono::milliseconds(size * 1000 / rate),
                                now() + shared_.limits.body_time);
      wait_until(body_deadline_);
    }
    return true;
  }

  // Checks the head. Returns false after a refusal.
  [[nodiscard]] bool accept_head() {
    const auto& request = parser_->get();
    version_ = request.version();
    is_head_request_ = request.method() == http::verb::head;
    take_head();
    if (const auto problem = find_head_problem(passed_, version_, shared_.limits.max_headers)) {
      return refuse(problem->status, problem->why);
    }
    const bool continues =
        passed_.header("expect").has_value() && !parser_->is_done() && version_ >= 11;
    if (shared_.callbacks.check_head) {
      if (auto refusal = shared_.callbacks.check_head(passed_)) {
        state_ = State::kExchange;
        keep_alive_ = false;
        respond(*refusal);
        return false;
      }
    }
    if (shared_.stopping) {
      return refuse(503, "the server is stopping");
    }
    if (!accept_length()) {
      return false;
    }
    state_ = State::kBody;
    body_deadline_ = now() + shared_.limits.body_time;
    wait_until(body_deadline_);
    if (continues) {
      send("HTTP/1.1 100 Continue\r\n\r\n");
    }
    return true;
  }

  // Checks the declared length of the body against the limit for the request, and sets that for a
  // body of unknown length. Returns false after a refusal.
  [[nodiscard]] bool accept_length() {
    const std::size_t most = shared_.limits.max_body_bytes;
    max_body_ = shared_.callbacks.max_body ? shared_.callbacks.max_body(passed_) : most;
    is_large_ = max_body_ > most;
    parser_->body_limit(max_body_);
    const auto length = parser_->content_length();
    if (length && *length > max_body_) {
      return refuse_length();
    }
    FairLimit& limit = is_large_ ? shared_.large_body_bytes : shared_.body_bytes;
    const std::string tenant =
        shared_.callbacks.tenant_of ? shared_.callbacks.tenant_of(passed_) : "";
    held_ = {limit, tenant};
    held_unsent_ = {shared_.unsent_bytes, tenant};
    return !is_large_ || !length || limit.fits(tenant, *length) || refuse_load();
  }
  // Reserves the memory of a large body, which would need twice as much while it grows. A body of
  // which little has arrived reserves nothing. Returns false if there is no memory.
  [[nodiscard]] bool reserve_body() {
    const auto length = parser_->content_length();
    if (!is_large_ || !length || held_.size() < kMinReservingBytes) {
      return true;
    }
    try {
      parser_->get().body().reserve(*length);
    } catch (const std::bad_alloc&) {
      return false;
    }
    return true;
  }

  // Frees the body of a request that is refused.
  void drop_body() {
    if (parser_.has_value()) {
      parser_->get().body() = std::string();
      held_.give_back();
    }
  }

  bool refuse_load() {
    return refuse(503, std::string("the bodies of requests in progress fill the ") +
                           (shared_.limits.tenancy == Tenancy::kOne
                                ? "server's memory for them"
                                : "memory for this tenant or for all tenants") +
                           "; try again later");
  }
  bool refuse_length() {
    return refuse(413, "the body is longer than " + std::to_string(max_body_) + " bytes");
  }

  // Takes over the head of the request. Fields after the body are not part of it.
  void take_head() {
    const auto& request = parser_->get();
    passed_ = HttpRequest();
    passed_.method.assign(request.method_string().data(), request.method_string().size());
    passed_.target.assign(request.target().data(), request.target().size());
    for (const auto& field : request) {
      passed_.headers.push_back(
          {lower_case(view(field.name_string())), std::string(view(field.value()))});
    }
  }

  void pass_on() {
    timer_.cancel();
    auto& request = parser_->get();
    passed_.exchange = exchange_ = ++shared_.last_exchange;
    passed_.body = std::move(request.body());
    keep_alive_ = request.keep_alive() && !shared_.stopping;
    state_ = State::kExchange;
    shared_.exchanges.emplace(exchange_, this);
    shared_.callbacks.on_request(std::exchange(passed_, {}));
    read_ahead();
  }

  void refuse_syntax(const error_code& error) {
    if (error == http::error::header_limit) {
      refuse(431, "the headers are longer than " + std::to_string(shared_.limits.max_header_bytes) +
                      " bytes");
    } else if (error == http::error::body_limit) {
      refuse_length();
    } else if (error == http::error::bad_version) {
      refuse(505, "the server speaks HTTP/1.0 and HTTP/1.1");
    } else {
      refuse(400, "the request is not valid HTTP: " + error.message());
    }
  }

  // Responds without passing the request on, and closes the connection. Returns false.
  bool refuse(std::uint32_t status, const std::string& why) {
    state_ = State::kExchange;
    keep_alive_ = false;
    drop_body();
    respond(refusal(status, why));
    return false;
  }

  // Returns the head of a response, after which the connection closes if the server stops. `length`
  // is empty for a body of unknown length.
  [[nodiscard]] std::string head(const HttpResponse& response, const std::string& length) {
    keep_alive_ = keep_alive_ && !shared_.stopping;
    return head_text(response, {length, chunked_, keep_alive_, version_ < 11});
  }

  // Counts what a connection has to send. Returns false if all of it is too much.
  [[nodiscard]] bool hold_unsent(std::size_t size) {
    return held_unsent_.resize(std::max(size, kUncountedBytes) - kUncountedBytes);
  }

  void send(std::string bytes) {
    if (!hold_unsent(unsent_ + bytes.size())) {
      abort();
      return;
    }
    unsent_ += bytes.size();
    unsent_parts_.push_back(std::move(bytes));
    if (!writing_) {
      write_some();
    }
  }

  void write_some() {
    writing_ = true;
    if (state_ == State::kExchange) {
      wait(shared_.limits.write_time);
    }
    const std::string& front = unsent_parts_.front();
    socket_.async_write_some(
        asio::buffer(front.data() + sent_of_front_, front.size() - sent_of_front_),
        [self = shared_from_this()](const error_code& error, std::size_t size) {
          self->writing_ = false;
          self->on_written(error, size);
        });
  }

  void on_written(const error_code& error, std::size_t size) {
    if (error || state_ == State::kClosed) {
      abort();
      return;
    }
    unsent_ -= size;
    (void)hold_unsent(unsent_);  // less always fits
    sent_of_front_ += size;
    if (sent_of_front_ == unsent_parts_.front().size()) {
      unsent_parts_.pop_front();
      sent_of_front_ = 0;
    }
    if (!unsent_parts_.empty()) {
      write_some();
      return;
    }
    if (state_ == State::kExchange) {
      timer_.cancel();
      if (finishing_) {
        end_exchange();
      } else if (reports_ && shared_.callbacks.on_sent) {
        shared_.callbacks.on_sent(exchange_);
      }
    }
  }

  void end_exchange() {
    release_exchange();
    if (keep_alive_ && !shared_.stopping) {
      next_request();
      return;
    }
    state_ = State::kLinger;
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    wait(shared_.limits.linger_time);
    read();
  }

  void release_exchange() {
    shared_.exchanges.erase(std::exchange(exchange_, 0));
    held_.give_back();
  }

  void wait(Duration time) { wait_until(now() + time); }
  void wait_until(TimePoint deadline) {
    timer_.expires_at(deadline);
    timer_.async_wait([self = shared_from_this()](const error_code& error) {
      // A timer that has been set again must not act on its old deadline.
      if (!error && self->timer_.expiry() <= std::chrono::steady_clock::now()) {
        self->on_timeout();
      }
    });
  }

  void on_timeout() {
    switch (state_) {
      case State::kHead: refuse(408, "the headers took too long"); break;
      case State::kBody: refuse(408, "the body took too long"); break;
      case State::kExchange:
        if (writing_) {
          abort();
        }
        break;
      default: abort();
    }
  }

  tcp::socket socket_;
  asio::steady_timer timer_;
  Shared& shared_;
  State state_ = State::kIdle;
  std::vector<char> incoming_ = std::vector<char>(kReadBytes);
  beast::flat_buffer buffer_;  // received, not parsed yet
  std::optional<Parser> parser_;
  bool reading_ = false;
  HeldAmount held_;  // the body that has arrived
  std::size_t max_body_ = 0;
  bool is_large_ = false;  // its body may be longer than `max_body_bytes`
  TimePoint body_deadline_{};
  HttpRequest passed_;  // its head, while the body arrives
  std::size_t discarded_ = 0;
  // Of the exchange.
  ExchangeId exchange_ = 0;  // 0: none
  unsigned version_ = 11;
  bool is_head_request_ = false;
  bool keep_alive_ = false;
  bool started_ = false;    // the head has been sent
  bool finishing_ = false;  // the exchange ends once everything is sent
  bool chunked_ = false;
  bool reports_ = false;         // calls `on_sent`
  std::uint64_t unwritten_ = 0;  // of a body of known length
  // Parts to send.
  std::deque<std::string> unsent_parts_;
  std::size_t sent_of_front_ = 0;
  std::size_t unsent_ = 0;  // bytes
  HeldAmount held_unsent_;  // of them
  bool writing_ = false;
};

class BeastServer final : public HttpServer {
public:
  explicit BeastServer(const HttpLimits& limits) : acceptor_(io_), retry_(io_) {
    shared_.limits = limits;
    shared_.body_bytes = {limits.max_buffered_bytes, limits.tenancy};
    shared_.large_body_bytes = {limits.max_large_buffered_bytes, limits.tenancy};
    shared_.unsent_bytes = {limits.max_total_unsent_bytes, limits.tenancy};
  }

  ~BeastServer() override {
    io_.stop();
    if (thread_.joinable()) {
      thread_.join();
    }
    // Before `io_`, on which their sockets depend.
    shared_.exchanges.clear();
    shared_.connections.clear();
  }

  [[nodiscard]] Status open(const HttpAddress& address) {
    error_code error;
    const auto host = asio::ip::make_address(address.host, error);
    if (error) {
      return invalid_argument(address.host + ": not an IP address");
    }
    const tcp::endpoint endpoint(host, address.port);
    const auto failed = [&](const error_code& why) {
      return Status(Errc::kUnavailable,
                    address.host + ":" + std::to_string(address.port) + ": " + why.message());
    };
    if (acceptor_.open(endpoint.protocol(), error)) {
      return failed(error);
    }
    acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (acceptor_.bind(endpoint, error) || acceptor_.listen(1024, error)) {
      return failed(error);
    }
    port_ = acceptor_.local_endpoint(error).port();
    return {};
  }

  [[nodiscard]] Status start(HttpCallbacks callbacks) override {
    shared_.callbacks = std::move(callbacks);
    try {
      thread_ = std::thread([this] {
        accept();
        const auto work = asio::make_work_guard(io_);
        io_.run();
      });
    } catch (const std::system_error& why) {
      return {Errc::kResourceExhausted,
              std::string("cannot start the thread of the HTTP server: ") + why.what()};
    }
    pthread_setname_np(thread_.native_handle(), "http");
    return {};
  }

  void respond(ExchangeId exchange, HttpResponse response) override {
    post(exchange, [response = std::move(response)](Connection& connection) {
      connection.respond(response);
    });
  }
  void start_stream(ExchangeId exchange, HttpResponse head) override {
    post(exchange,
         [head = std::move(head)](Connection& connection) { connection.start_stream(head); });
  }
  void start_body(ExchangeId exchange, HttpResponse head, std::uint64_t length) override {
    post(exchange, [head = std::move(head), length](Connection& connection) {
      connection.start_body(head, length);
    });
  }
  void write(ExchangeId exchange, std::string part) override {
    post(exchange, [part = std::move(part)](Connection& connection) mutable {
      connection.write(std::move(part));
    });
  }
  void end(ExchangeId exchange) override {
    post(exchange, [](Connection& connection) { connection.end(); });
  }

  bool flush(Duration limit) override {
    const TimePoint deadline = now() + limit;
    for (;;) {
      auto flushed = std::make_shared<std::promise<bool>>();
      std::future<bool> result = flushed->get_future();
      asio::post(io_, [this, flushed] {
        flushed->set_value(
            std::none_of(shared_.connections.begin(), shared_.connections.end(),
                         [](const auto& connection) { return connection->has_unsent(); }));
      });
      if (result.wait_until(deadline) != std::future_status::ready) {
        return false;
      }
      if (result.get()) {
        return true;
      }
      if (std::chrono::steady_clock::now() >= deadline) {
        return false;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  [[nodiscard]] std::uint16_t port() const override { return port_; }

  void stop_accepting() override {
    asio::post(io_, [this] {
      shared_.stopping = true;
      error_code ignored;
      acceptor_.close(ignored);
      retry_.cancel();
    });
  }

private:
  template <class Call>
  void post(ExchangeId exchange, Call call) {
    asio::post(io_, [this, exchange, call = std::move(call)]() mutable {
      const auto found = shared_.exchanges.find(exchange);
      if (found != shared_.exchanges.end()) {
        // The call may close the connection.
        const std::shared_ptr<Connection> connection = found->second->shared_from_this();
        call(*connection);
      }
    });
  }

  void accept() {
    acceptor_.async_accept([this](const error_code& error, tcp::socket socket) {
      if (!acceptor_.is_open()) {
        return;
      }
      if (error) {
        // Too many open files, or the client has gone already.
        retry_.expires_after(std::chrono::milliseconds(50));
        retry_.async_wait([this](const error_code& cancelled) {
          if (!cancelled) {
            accept();
          }
        });
        return;
      }
      const HttpLimits& limits = shared_.limits;
      const std::size_t num_open = shared_.connections.size();
      if (num_open < limits.max_connections + limits.max_refused_connections) {
        const auto connection = std::make_shared<Connection>(std::move(socket), shared_);
        shared_.connections.insert(connection);
        num_open < limits.max_connections ? connection->start() : connection->refuse_all();
      }  // otherwise the destructor of `socket` closes the connection
      accept();
    });
  }

  Shared shared_;  // outlives the connections, which handlers of `io_` hold
  asio::io_context io_{1};
  tcp::acceptor acceptor_;
  asio::steady_timer retry_;
  std::uint16_t port_ = 0;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<HttpServer>> open_http_server(const HttpAddress& address,
                                                     const HttpLimits& limits) {
  auto server = std::make_unique<BeastServer>(limits);
  TIDEMILL_RETURN_IF_ERROR(server->open(address));
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace tidemill::actors
