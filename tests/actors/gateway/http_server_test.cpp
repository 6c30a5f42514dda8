// SPDX-License-Identifier: Apache-2.0
// Tests the HTTP server over real connections.
#include "actors/gateway/http/http_server.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/actors/gateway/raw_client.hpp"

namespace tidemill::test {
namespace {

using actors::ExchangeId;
using actors::HttpLimits;
using actors::HttpRequest;
using actors::HttpServer;
using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// A server whose requests wait until a test takes them.
class HttpServerTest : public ::testing::Test {
protected:
  static constexpr std::size_t kLargeBytes = std::size_t{64} << 20U;  // of a body for "/large"

  void start(const HttpLimits& limits = {}) {
    auto opened = actors::open_http_server({}, limits);
    ASSERT_TRUE(opened.ok()) << opened.status().to_string();
    server_ = std::move(opened).value();
    actors::HttpCallbacks callbacks;
    callbacks.on_request = [this](HttpRequest request) {
      const std::lock_guard lock(mutex_);
      requests_.push_back(std::move(request));
      changed_.notify_all();
    };
    callbacks.check_head = [](const HttpRequest& request) -> std::optional<actors::HttpResponse> {
      return request.target == "/refused" ? std::optional(actors::HttpResponse{403, {}, "no"})
                                          : std::nullopt;
    };
    callbacks.max_body = [most = limits.max_body_bytes](const HttpRequest& request) {
      return request.target == "/large" ? kLargeBytes : most;
    };
    callbacks.tenant_of = [](const HttpRequest& request) {
      return std::string(request.header("tenant").value_or(""));
    };
    callbacks.on_sent = [this](ExchangeId id) {
      const std::lock_guard lock(mutex_);
      sent_.push_back(id);
      changed_.notify_all();
    };
    callbacks.on_closed = [this](ExchangeId id) {
      const std::lock_guard lock(mutex_);
      closed_.push_back(id);
      changed_.notify_all();
    };
    const Status started = server_->start(std::move(callbacks));
    ASSERT_TRUE(started.ok()) << started.to_string();
  }

  HttpServer& server() { return *server_; }
  RawClient client() { return RawClient(server_->port()); }

  // Waits for the next request. Its exchange is 0 if none has arrived after 20 seconds.
  HttpRequest next_request() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, 20s, [this] { return !requests_.empty(); })) {
      return {};
    }
    HttpRequest request = std::move(requests_.front());
    requests_.pop_front();
    return request;
  }
  // Waits until a client has closed an exchange, and returns its id.
  ExchangeId next_closed() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, 20s, [this] { return !closed_.empty(); })) {
      return 0;
    }
    const ExchangeId id = closed_.front();
    closed_.pop_front();
    return id;
  }
  // Waits until all parts of a body have been sent, and returns the id of its exchange.
  ExchangeId next_sent() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, 20s, [this] { return !sent_.empty(); })) {
      return 0;
    }
    const ExchangeId id = sent_.front();
    sent_.pop_front();
    return id;
  }
  std::size_t num_requests() {
    const std::lock_guard lock(mutex_);
    return requests_.size();
  }

  // Sends `bytes` on a new connection and returns all that the server sends until it closes it.
  std::string exchange(const std::string& bytes) {
    RawClient one = client();
    one.send(bytes);
    std::string text = one.read_all();
    EXPECT_TRUE(one.closed()) << bytes;
    return text;
  }

private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<HttpRequest> requests_;
  std::deque<ExchangeId> closed_;
  std::deque<ExchangeId> sent_;
  std::unique_ptr<HttpServer> server_;  // its thread uses the members above
};

const std::string kGet = "GET /a?b=c HTTP/1.1\r\nHost: x\r\nX-Mixed: Value\r\n\r\n";

TEST_F(HttpServerTest, PassesRequestsOnAndSendsResponses) {
  start();
  RawClient one = client();
  one.send("POST /v1/x HTTP/1.1\r\nHost: x:1\r\nContent-Length: 4\r\n\r\nbody");
  const HttpRequest request = next_request();
  EXPECT_EQ(request.method, "POST");
  EXPECT_EQ(request.target, "/v1/x");
  EXPECT_EQ(request.body, "body");
  EXPECT_EQ(request.header("host"), "x:1");
  server().respond(request.exchange, {404, {{"content-type", "text/plain"}}, "gone"});
  const std::string text = one.read_until("gone");
  EXPECT_THAT(text, StartsWith("HTTP/1.1 404 Not Found\r\ndate: "));
  EXPECT_THAT(text, HasSubstr("\r\ncontent-type: text/plain\r\ncontent-length: 4\r\n\r\ngone"));
}

TEST_F(HttpServerTest, KeepsConnectionsOpen) {
  start();
  RawClient one = client();
  for (int i = 0; i < 3; ++i) {
    one.send(kGet);
    const HttpRequest request = next_request();
    EXPECT_EQ(request.target, "/a?b=c");
    EXPECT_EQ(request.header("x-mixed"), "Value");
    server().respond(request.exchange, {200, {}, "reply " + std::to_string(i)});
    EXPECT_THAT(one.read_until("reply " + std::to_string(i)), HasSubstr("200 OK"));
  }
  one.send("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  server().respond(next_request().exchange, {200, {}, "last"});
  EXPECT_THAT(one.read_all(), HasSubstr("content-length: 4\r\nconnection: close\r\n\r\nlast"));
}

TEST_F(HttpServerTest, ProcessesPipelinedRequestsInOrder) {
  start();
  RawClient one = client();
  std::string bytes;
  for (int i = 0; i < 50; ++i) {
    bytes += "POST /" + std::to_string(i) + " HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc";
  }
  one.send(bytes);
  for (int i = 0; i < 50; ++i) {
    const HttpRequest request = next_request();
    ASSERT_EQ(request.target, "/" + std::to_string(i));
    ASSERT_EQ(request.body, "abc");
    // The next one waits for the response.
    EXPECT_EQ(num_requests(), 0U);
    server().respond(request.exchange, {200, {}, "<" + std::to_string(i) + ">"});
    one.read_until("<" + std::to_string(i) + ">");
  }
}

// A client that sends requests faster than they are answered must not fill the server's memory.
TEST_F(HttpServerTest, LimitsWhatItReadsAhead) {
  constexpr int kAnswered = 2000;
  constexpr std::size_t kPieceBytes = std::size_t{64} << 10U;
  start();
  RawClient one = client();
  std::string piece;
  while (piece.size() < kPieceBytes) {
    piece += kGet;
  }
  std::atomic<std::size_t> accepted = 0;  // bytes, by the server and by the buffers of the sockets
  std::thread sender([&] {
    while (accepted < (std::size_t{64} << 20U) && one.send(piece)) {
      accepted += piece.size();
    }
  });
  for (int i = 0; i < kAnswered; ++i) {
    const HttpRequest request = next_request();
    EXPECT_NE(request.exchange, 0U);
    server().respond(request.exchange, {204, {}, ""});
  }
  // The sockets hold some megabytes. If each answer let the server read on, it would hold 31 MiB.
  EXPECT_LT(accepted, std::size_t{16} << 20U);
  one.shut_down_both();
  sender.join();
}

TEST_F(HttpServerTest, AcceptsRequestsInAnyPieces) {
  start();
  RawClient one = client();
  const std::string bytes =
      "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
      "3\r\nabc\r\n10;ext=1\r\n0123456789abcdef\r\n0\r\nTrailer: x\r\n\r\n";
  for (const char c : bytes) {
    one.send(std::string_view(&c, 1));
  }
  const HttpRequest request = next_request();
  EXPECT_EQ(request.body, "abc0123456789abcdef");
  server().respond(request.exchange, {200, {}, "ok"});
  EXPECT_THAT(one.read_until("\r\n\r\nok"), HasSubstr("200 OK"));
}

TEST_F(HttpServerTest, StreamsBodies) {
  start();
  RawClient one = client();
  one.send(kGet);
  const ExchangeId id = next_request().exchange;
  server().start_stream(id, {200, {{"content-type", "text/event-stream"}}, "first"});
  EXPECT_THAT(one.read_until("first\r\n"),
              HasSubstr("transfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n"));
  server().write(id, std::string(300, 'x'));
  EXPECT_EQ(one.read_until("x\r\n"), "12c\r\n" + std::string(300, 'x') + "\r\n");
  server().write(id, "");
  server().end(id);
  server().write(id, "late");
  EXPECT_EQ(one.read_until("0\r\n\r\n"), "0\r\n\r\n");
  one.send(kGet);
  server().respond(next_request().exchange, {200, {}, "next"});
  EXPECT_THAT(one.read_until("next"), StartsWith("HTTP/1.1 200 OK\r\n"));
}

TEST_F(HttpServerTest, ClosesStreamsOfOldClients) {
  start();
  RawClient one = client();
  one.send("GET / HTTP/1.0\r\n\r\n");
  const ExchangeId id = next_request().exchange;
  server().start_stream(id, {200, {}, "a"});
  server().write(id, "b");
  server().end(id);
  const std::string text = one.read_all();
  EXPECT_THAT(text, HasSubstr("connection: close\r\n\r\nab"));
  EXPECT_THAT(text, Not(HasSubstr("chunked")));
}

TEST_F(HttpServerTest, SendsNoBodyForHead) {
  start();
  RawClient one = client();
  one.send("HEAD / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  server().respond(next_request().exchange, {200, {}, "body"});
  const std::string text = one.read_all();
  EXPECT_THAT(text, HasSubstr("content-length: 4\r\nconnection: close\r\n\r\n"));
  EXPECT_THAT(text, Not(HasSubstr("body")));
}

TEST_F(HttpServerTest, ReportsClientsThatGo) {
  start();
  RawClient waiting = client();
  waiting.send(kGet);
  const ExchangeId first = next_request().exchange;
  waiting.close();
  EXPECT_EQ(next_closed(), first);
  server().respond(first, {200, {}, "late"});  // does nothing

  RawClient reading = client();
  reading.send(kGet);
  const ExchangeId second = next_request().exchange;
  server().start_stream(second, {200, {}, "begun"});
  reading.read_until("begun");
  reading.close();
  EXPECT_EQ(next_closed(), second);
}

TEST_F(HttpServerTest, ClosesConnectionsThatDoNotRead) {
  HttpLimits limits;
  limits.max_unsent_bytes = 1U << 20U;
  start(limits);
  RawClient one = client();
  one.send(kGet);
  const ExchangeId id = next_request().exchange;
  server().start_stream(id, {200, {}, ""});
  // The buffers of the sockets hold some megabytes.
  for (int i = 0; i < 64; ++i) {
    server().write(id, std::string(1U << 20U, 'x'));
  }
  EXPECT_EQ(next_closed(), id);
}

TEST_F(HttpServerTest, LimitsWhatAllClientsHaveNotRead) {
  constexpr std::size_t kLarge = std::size_t{16} << 20U;  // the sockets' buffers hold less
  HttpLimits limits;
  limits.max_total_unsent_bytes = kLarge + (1U << 20U);
  start(limits);
  RawClient silent = client();
  silent.send(kGet);
  const ExchangeId first = next_request().exchange;
  server().respond(first, {200, {}, std::string(kLarge, 'x')});

  RawClient other = client();
  other.send(kGet);
  server().respond(next_request().exchange, {200, {}, std::string(kLarge, 'x')});
  EXPECT_THAT(other.read_all(),
              AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("too much of earlier responses")));

  RawClient streaming = client();
  streaming.send(kGet);
  const ExchangeId stream = next_request().exchange;
  server().start_stream(stream, {200, {}, "begun"});
  server().write(stream, std::string(kLarge, 'x'));
  EXPECT_EQ(next_closed(), stream);

  RawClient small = client();
  small.send(kGet);
  server().respond(next_request().exchange, {200, {}, "small"});
  EXPECT_THAT(small.read_until("small"), HasSubstr("small")) << "small responses do not count";

  silent.close();
  EXPECT_EQ(next_closed(), first);
  RawClient later = client();
  later.send("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  server().respond(next_request().exchange, {200, {}, std::string(kLarge, 'x')});
  EXPECT_GT(later.read_all().size(), kLarge);
}

TEST_F(HttpServerTest, SharesWhatIsNotReadByTenant) {
  constexpr std::size_t kLarge = std::size_t{32} << 20U;
  HttpLimits limits;
  limits.tenancy = actors::Tenancy::kSeveral;
  limits.max_total_unsent_bytes = 2 * kLarge + (2U << 20U);
  start(limits);
  const auto respond_to = [&](RawClient& to, const std::string& tenant) {
    to.send("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\ntenant: " + tenant + "\r\n\r\n");
    server().respond(next_request().exchange, {200, {}, std::string(kLarge, 'x')});
  };
  RawClient silent = client();
  respond_to(silent, "one");
  RawClient refused = client();
  respond_to(refused, "one");
  EXPECT_THAT(refused.read_all(), StartsWith("HTTP/1.1 503 "));
  RawClient other = client();
  respond_to(other, "two");
  EXPECT_GT(other.read_all().size(), kLarge);
}

TEST_F(HttpServerTest, EndsConnectionsThatStopReading) {
  HttpLimits limits;
  limits.write_time = 200ms;
  start(limits);
  RawClient one = client();
  one.send(kGet);
  const ExchangeId id = next_request().exchange;
  server().respond(id, {200, {}, std::string(64U << 20U, 'x')});
  EXPECT_EQ(next_closed(), id);
}

TEST_F(HttpServerTest, ClosesSlowAndIdleConnections) {
  HttpLimits limits;
  limits.idle_time = 300ms;
  limits.header_time = 300ms;
  limits.body_time = 300ms;
  limits.min_body_rate = 1U << 20U;
  start(limits);
  RawClient idle = client();
  EXPECT_EQ(idle.read_all(), "");
  EXPECT_TRUE(idle.closed());
  EXPECT_THAT(exchange("GET / HTTP/1.1\r\nHost:"), StartsWith("HTTP/1.1 408 Request Timeout"));
  EXPECT_THAT(exchange("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nabc"),
              StartsWith("HTTP/1.1 408 Request Timeout"));
  // A request that waits for its response is neither idle nor slow.
  RawClient waiting = client();
  waiting.send(kGet);
  const HttpRequest request = next_request();
  // Longer than each of the limits above, which would have closed the connection.
  std::this_thread::sleep_for(700ms);
  server().respond(request.exchange, {200, {}, "done"});
  EXPECT_THAT(waiting.read_until("done"), HasSubstr("200 OK"));
}

TEST_F(HttpServerTest, LimitsHeadersAndBodies) {
  HttpLimits limits;
  limits.max_header_bytes = 1024;
  limits.max_headers = 10;
  limits.max_body_bytes = 1000;
  start(limits);
  const std::string start_line = "POST / HTTP/1.1\r\nHost: x\r\n";
  EXPECT_THAT(exchange(start_line + "X: " + std::string(2000, 'x') + "\r\n\r\n"),
              StartsWith("HTTP/1.1 431 "));
  EXPECT_THAT(exchange("GET /" + std::string(5000, 'x')), StartsWith("HTTP/1.1 431 "));
  std::string many = start_line;
  for (int i = 0; i < 20; ++i) {
    many += "X" + std::to_string(i) + ": 1\r\n";
  }
  EXPECT_THAT(exchange(many + "\r\n"), StartsWith("HTTP/1.1 431 "));
  EXPECT_THAT(exchange(start_line + "Content-Length: 1001\r\n\r\n"), StartsWith("HTTP/1.1 413 "));
  EXPECT_THAT(
      exchange(start_line + "Transfer-Encoding: chunked\r\n\r\n7d0\r\n" + std::string(2000, 'x')),
      StartsWith("HTTP/1.1 413 "));
  // The client can read the refusal although the server has not read all of the body.
  EXPECT_THAT(exchange(start_line + "Content-Length: 1000000\r\n\r\n" + std::string(1000000, 'x')),
              StartsWith("HTTP/1.1 413 "));
}

TEST_F(HttpServerTest, LimitsTheBodiesOfAllRequests) {
  HttpLimits limits;
  limits.max_body_bytes = 4000;
  limits.max_buffered_bytes = 5000;
  start(limits);
  const std::string body =
      "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3000\r\n\r\n" + std::string(3000, 'x');
  RawClient one = client();
  one.send(body);
  const ExchangeId id = next_request().exchange;
  EXPECT_THAT(exchange(body), StartsWith("HTTP/1.1 503 "));
  server().respond(id, {200, {}, "first"});
  one.read_until("first");
  RawClient two = client();
  two.send(body);
  server().respond(next_request().exchange, {200, {}, "second"});
  EXPECT_THAT(two.read_until("second"), HasSubstr("200 OK"));
}

TEST_F(HttpServerTest, AcceptsLargeBodiesWhereTheyAreAllowed) {
  HttpLimits limits;
  limits.max_body_bytes = 1000;
  limits.max_buffered_bytes = 3000;
  limits.max_large_buffered_bytes = 5000;
  start(limits);
  const auto post = [](const std::string& target, std::size_t size) {
    return "POST " + target + " HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(size) +
           "\r\n\r\n" + std::string(size, 'x');
  };
  RawClient one = client();
  one.send(post("/large", 4000));
  const HttpRequest large = next_request();
  EXPECT_EQ(large.body.size(), 4000U);
  EXPECT_THAT(exchange(post("/small", 1001)), StartsWith("HTTP/1.1 413 "));
  EXPECT_THAT(exchange(post("/large", 2000)), StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(exchange("POST /large HTTP/1.1\r\nHost: x\r\nContent-Length: 2000\r\n\r\n"),
              StartsWith("HTTP/1.1 503 "));  // before the body arrives
  // Large bodies do not count with the others.
  RawClient two = client();
  two.send(post("/small", 1000));
  EXPECT_EQ(next_request().target, "/small");
  server().respond(large.exchange, {200, {}, "stored"});
  one.read_until("stored");
  one.send("POST /large HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n" +
           std::string(2000, 'x') + "\r\n0\r\n\r\n");
  EXPECT_EQ(next_request().body.size(), 2000U);
  EXPECT_THAT(exchange("POST /large HTTP/1.1\r\nHost: x\r\nContent-Length: " +
                       std::to_string(kLargeBytes + 1) + "\r\n\r\n"),
              HasSubstr("the body is longer than 67108864 bytes"));
}

// A body that has not arrived holds no memory, so it must not take room from others.
TEST_F(HttpServerTest, CountsWhatHasArrivedOfLargeBodies) {
  HttpLimits limits;
  limits.max_body_bytes = 1000;
  limits.max_large_buffered_bytes = 5000;
  start(limits);
  const std::string head = "POST /large HTTP/1.1\r\nHost: x\r\nContent-Length: 4000\r\n";
  RawClient waiting = client();
  waiting.send(head + "Expect: 100-continue\r\n\r\n");
  waiting.read_until("100 Continue\r\n\r\n");
  RawClient other = client();
  other.send(head + "\r\n" + std::string(4000, 'x'));
  EXPECT_EQ(next_request().body.size(), 4000U);
  // Now there is no room for the first body.
  waiting.send(std::string(4000, 'x'));
  EXPECT_THAT(waiting.read_all(), StartsWith("HTTP/1.1 503 "));
}

TEST_F(HttpServerTest, LeavesRoomForTheBodiesOfOtherTenants) {
  HttpLimits limits;
  limits.max_body_bytes = 4000;
  limits.max_buffered_bytes = 4000;
  limits.max_large_buffered_bytes = 12000;
  limits.tenancy = actors::Tenancy::kSeveral;
  start(limits);
  const auto post = [](const std::string& target, const std::string& tenant, std::size_t size) {
    return "POST " + target + " HTTP/1.1\r\nHost: x\r\nTenant: " + tenant +
           "\r\nContent-Length: " + std::to_string(size) + "\r\n\r\n" + std::string(size, 'x');
  };
  for (const std::string target : {"/", "/large"}) {
    const std::size_t piece = target == "/" ? 1000 : 3000;
    // A tenant may hold half of the room, or more with one body.
    RawClient first = client();
    first.send(post(target, "red", 3 * piece));
    EXPECT_EQ(next_request().body.size(), 3 * piece);
    RawClient refused = client();
    refused.send(post(target, "red", 1));
    EXPECT_THAT(refused.read_all(), AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("this tenant")));
    RawClient other = client();
    other.send(post(target, "blue", piece));
    EXPECT_EQ(next_request().body.size(), piece);
    first.close();
    next_closed();
    RawClient again = client();
    again.send(post(target, "red", piece));
    EXPECT_EQ(next_request().body.size(), piece);
    other.close();
    next_closed();
    again.close();
    next_closed();
  }
}

TEST_F(HttpServerTest, SendsABodyOfKnownLengthInParts) {
  start();
  RawClient one = client();
  one.send(kGet);
  const ExchangeId id = next_request().exchange;
  server().start_body(id, {200, {}, ""}, 6);
  EXPECT_EQ(next_sent(), id);
  server().write(id, "abc");
  EXPECT_EQ(next_sent(), id);
  server().write(id, "def");
  server().end(id);
  EXPECT_THAT(one.read_until("def"), HasSubstr("content-length: 6\r\n\r\nabcdef"));
  one.send(kGet);  // the connection goes on
  server().respond(next_request().exchange, {200, {}, "next"});
  EXPECT_THAT(one.read_until("next"), HasSubstr("next"));
}

TEST_F(HttpServerTest, ClosesAConnectionWhoseBodyIsTooShort) {
  start();
  RawClient one = client();
  one.send(kGet);
  const ExchangeId id = next_request().exchange;
  server().start_body(id, {200, {}, ""}, 6);
  server().write(id, "abc");
  EXPECT_EQ(next_sent(), id);
  server().end(id);
  EXPECT_THAT(one.read_all(), HasSubstr("content-length: 6"));
  EXPECT_TRUE(one.closed());
}

TEST_F(HttpServerTest, RefusesARequestBeforeItsBody) {
  start();
  EXPECT_THAT(exchange("POST /refused HTTP/1.1\r\nHost: x\r\nContent-Length: 50000000\r\n"
                       "Expect: 100-continue\r\n\r\n"),
              StartsWith("HTTP/1.1 403 "));
  EXPECT_EQ(num_requests(), 0U);
}

TEST_F(HttpServerTest, LimitsWhatSurroundsTheChunksOfABody) {
  start();
  const std::string head = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  const std::string much(200'000, 'a');
  EXPECT_THAT(exchange(head + "1;" + much), StartsWith("HTTP/1.1 431 "));
  EXPECT_THAT(exchange(head + "0\r\nX: " + much), StartsWith("HTTP/1.1 431 "));
}

TEST_F(HttpServerTest, FieldsAfterABodyAreNoHeaders) {
  start();
  RawClient one = client();
  one.send(
      "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
      "1\r\na\r\n0\r\nContent-Type: application/json\r\n\r\n");
  const HttpRequest request = next_request();
  EXPECT_EQ(request.body, "a");
  EXPECT_EQ(request.header("content-type"), std::nullopt);
}

// A body that stalls after most of it has arrived must not hold its memory for long.
TEST_F(HttpServerTest, EndsBodiesThatStall) {
  HttpLimits limits;
  limits.body_time = 300ms;
  limits.min_body_rate = 1000;
  start(limits);
  EXPECT_THAT(exchange("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n" +
                       std::string(999'999, 'x')),
              StartsWith("HTTP/1.1 408 "));
}

TEST_F(HttpServerTest, SendsOnePartOfAnySize) {
  HttpLimits limits;
  limits.max_unsent_bytes = 1000;
  start(limits);
  RawClient one = client();
  one.send(kGet);
  const ExchangeId id = next_request().exchange;
  server().start_stream(id, {200, {}, ""});
  one.read_until("\r\n\r\n");
  server().write(id, std::string(1'000'000, 'x') + "end");
  EXPECT_THAT(one.read_until("end"), HasSubstr("xend"));
}

TEST_F(HttpServerTest, LimitsConnections) {
  HttpLimits limits;
  limits.max_connections = 2;
  start(limits);
  RawClient one = client();
  RawClient two = client();
  one.send(kGet);
  const ExchangeId first = next_request().exchange;
  two.send(kGet);
  next_request();
  RawClient three = client();
  EXPECT_THAT(three.read_all(), StartsWith("HTTP/1.1 503 "));
  server().respond(first, {200, {}, "still served"});
  EXPECT_EQ(one.read_until("still served").empty(), false);
}

TEST_F(HttpServerTest, LimitsRefusedConnections) {
  HttpLimits limits;
  limits.max_connections = 1;
  limits.max_refused_connections = 2;
  limits.linger_time = 1h;
  start(limits);
  RawClient one = client();
  one.send(kGet);
  const ExchangeId first = next_request().exchange;
  std::optional<RawClient> two(client());
  RawClient three = client();
  EXPECT_THAT(two->read_until("\r\n\r\n"), StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(three.read_until("\r\n\r\n"), StartsWith("HTTP/1.1 503 "));
  for (int i = 0; i < 10; ++i) {
    RawClient more = client();
    EXPECT_EQ(more.read_all(), "");
    EXPECT_TRUE(more.closed());
  }
  two.reset();
  // The server may accept the next connection before it notices the end of this one.
  std::string text;
  for (const auto deadline = std::chrono::steady_clock::now() + 20s;
       text.empty() && std::chrono::steady_clock::now() < deadline;) {
    text = client().read_until("\r\n\r\n");
  }
  EXPECT_THAT(text, StartsWith("HTTP/1.1 503 "));
  server().respond(first, {200, {}, "still served"});
  EXPECT_THAT(one.read_until("still served"), HasSubstr("still served"));
}

TEST_F(HttpServerTest, AnswersExpectations) {
  start();
  RawClient one = client();
  one.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(one.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  one.send("ok");
  const HttpRequest request = next_request();
  EXPECT_EQ(request.body, "ok");
  server().respond(request.exchange, {200, {}, "done"});
  EXPECT_THAT(one.read_until("done"), StartsWith("HTTP/1.1 200 OK"));
  EXPECT_THAT(exchange("GET / HTTP/1.1\r\nHost: x\r\nExpect: tea\r\n\r\n"),
              StartsWith("HTTP/1.1 417 "));
}

// Each of these would be understood differently by another parser, or is no request.
TEST_F(HttpServerTest, RefusesAmbiguousRequests) {
  start();
  const std::vector<std::string> requests = {
      "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: "
      "chunked\r\n\r\n0\r\n\r\n",
      "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: "
      "3\r\n\r\n0\r\n\r\n",
      "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
      "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
      "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +3\r\n\r\nabc",
      "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0x3\r\n\r\nabc",
      "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3, 3\r\n\r\nabc",
      "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
      "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
      "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
      "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: identity\r\n\r\n",
      "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
      "POST / HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
      "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
      "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
      "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
      "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
      "GET / HTTP/1.1\r\n\r\n",
      "GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
      "GET / HTTP/2.0\r\nHost: x\r\n\r\n",
      "GET / HTTP/1.1\r\nHost: x\r\nBad Name: 1\r\n\r\n",
      "GET / HTTP/1.1\r\nHost: x\r\nNoColon\r\n\r\n",
      std::string("GET / HTTP/1.1\r\nHost: x\r\nX: a\0b\r\n\r\n", 36),
      "GET  / HTTP/1.1\r\nHost: x\r\n\r\n",
      "GET / http/1.1\r\nHost: x\r\n\r\n",
      "G\x01T / HTTP/1.1\r\nHost: x\r\n\r\n",
      "GET /\x7f HTTP/1.1\r\nHost: x\r\n\r\n",
      "\x16\x03\x01\x02\x00\x01\x00\x01",
      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
      "GET / HTTP/1.1\nHost: x\n\n",
  };
  for (const std::string& request : requests) {
    RawClient one = client();
    one.send(request);
    one.shut_down();
    const std::string text = one.read_all();
    EXPECT_TRUE(text.starts_with("HTTP/1.1 4") || text.starts_with("HTTP/1.1 5"))
        << ::testing::PrintToString(request) << " got " << text;
    EXPECT_TRUE(one.closed());
  }
  EXPECT_EQ(num_requests(), 0U);
}

// RFC 9112, section 5.2, lets a server replace a fold by spaces.
TEST_F(HttpServerTest, JoinsFoldedHeaders) {
  start();
  RawClient one = client();
  one.send("GET / HTTP/1.1\r\nHost: x\r\nX: a\r\n  b\r\n\r\n");
  EXPECT_EQ(next_request().header("x"), "a b");
}

TEST_F(HttpServerTest, StopsWithoutLosingResponses) {
  start();
  RawClient idle = client();
  // Read before the request of the next connection, which arrives later.
  RawClient half = client();
  half.send("GET / HTTP/1.1\r\nHost: x\r\n");
  RawClient busy = client();
  busy.send(kGet);
  const ExchangeId id = next_request().exchange;
  server().stop_accepting();
  half.send("\r\n");
  EXPECT_THAT(half.read_all(), StartsWith("HTTP/1.1 503 "));
  EXPECT_FALSE(server().flush(50ms));
  // An idle connection stays open until its next request.
  idle.send(kGet);
  EXPECT_THAT(idle.read_all(),
              AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("retry-after: 1\r\n"),
                    HasSubstr("connection: close\r\n"), HasSubstr(R"("type": "server_error")")));
  server().respond(id, {200, {}, std::string(1U << 20U, 'x') + "end"});
  EXPECT_THAT(busy.read_all(), AllOf(HasSubstr("connection: close\r\n"), HasSubstr("xend")));
  EXPECT_TRUE(server().flush(10s));
  RawClient late = client();
  EXPECT_FALSE(late.connected() && late.send(kGet) && !late.read_all(1s).empty());
}

TEST_F(HttpServerTest, NamesAddressesThatCannotBeUsed) {
  start();
  EXPECT_EQ(actors::open_http_server({"nowhere", 0}, {}).status().code(), Errc::kInvalidArgument);
  EXPECT_THAT(actors::open_http_server({"127.0.0.1", server().port()}, {}).status().message(),
              HasSubstr("127.0.0.1:" + std::to_string(server().port())));
}

TEST(HttpMessageTest, FindsQueryParameters) {
  EXPECT_EQ(actors::query_parameter("/a?x=1&name=a%20b+c", "name"), "a b c");
  EXPECT_EQ(actors::query_parameter("/a?x", "x"), "");
  EXPECT_EQ(actors::query_parameter("/a?x=%4", "x"), std::nullopt);
  EXPECT_EQ(actors::query_parameter("/a?x=%zz", "x"), std::nullopt);
  EXPECT_EQ(actors::query_parameter("/a", "x"), std::nullopt);
  EXPECT_EQ(actors::target_path("/a/b?x=1"), "/a/b");
  EXPECT_EQ(actors::decode_path("a%20b+c%2F"), "a b+c/");
  EXPECT_EQ(actors::decode_path("a%"), std::nullopt);
}

}  // namespace
}  // namespace tidemill::test
