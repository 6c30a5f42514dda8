// SPDX-License-Identifier: Apache-2.0
// Tests the HTTP client against servers that send chosen bytes, and the reader of events.
#include "actors/gateway/http/http_client.hpp"

#include <arpa/inet.h>
#include <chrono>
#include <netinet/in.h>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/gateway/http/event_reader.hpp"
#include "base/files/unique_fd.hpp"

namespace tidemill::test {
namespace {

using actors::HttpCall;
using actors::HttpClient;
using actors::HttpClientLimits;
using actors::HttpUrl;
using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

// Accepts one connection, reads a request up to the end of its head, and sends `parts`. Then it
// closes the connection or, with `kSilent`, waits until the client does.
class OneResponse {
public:
  enum class End { kClose, kSilent };

  OneResponse(std::vector<std::string> parts, End end)
      : listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(listener_.get(), 4), 0);
    ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, parts = std::move(parts), end] {
      UniqueFd peer(::accept(listener_.get(), nullptr, nullptr));
      char bytes[4096];
      while (request_.find("\r\n\r\n") == std::string::npos) {
        const ssize_t count = ::recv(peer.get(), bytes, sizeof(bytes), 0);
        if (count <= 0) {
          return;
        }
        request_.append(bytes, static_cast<std::size_t>(count));
      }
      for (const std::string& part : parts) {
        if (::send(peer.get(), part.data(), part.size(), MSG_NOSIGNAL) < 0) {
          return;
        }
      }
      while (end == End::kSilent && ::recv(peer.get(), bytes, sizeof(bytes), 0) > 0) {
      }
    });
  }
  ~OneResponse() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }

  [[nodiscard]] HttpUrl url() const { return {"127.0.0.1", port_, "/v1"}; }
  // Waits for the end.
  std::string request() {
    thread_.join();
    thread_ = std::thread([] {});
    return request_;
  }

private:
  UniqueFd listener_;
  std::uint16_t port_ = 0;
  std::string request_;
  std::thread thread_;
};

using End = OneResponse::End;

Status status_of(std::vector<std::string> parts, End end, const HttpClientLimits& limits = {}) {
  OneResponse server(std::move(parts), end);
  HttpClient client(server.url(), limits);
  HttpCall call;
  call.path = "/models";
  return client.call(call).status();
}

TEST(HttpUrlTest, ParsesAddresses) {
  struct Case {
    const char* text;
    const char* authority;
    const char* path;
  };
  for (const Case& one : {Case{"http://localhost:8000", "localhost:8000", ""},
                          Case{"HTTP://127.0.0.1/v1/", "127.0.0.1:80", "/v1"},
                          Case{"http://[::1]:9/a/b", "[::1]:9", "/a/b"}}) {
    const auto url = actors::parse_http_url(one.text);
    ASSERT_TRUE(url.ok()) << url.status().to_string();
    EXPECT_EQ(url.value().authority(), one.authority);
    EXPECT_EQ(url.value().path, one.path);
  }
}

TEST(HttpUrlTest, RefusesOthersByName) {
  struct Case {
    const char* text;
    const char* why;
  };
  for (const Case& one :
       {Case{"https://host", "https is not supported"}, Case{"ftp://host", "must begin with"},
        Case{"http://", "has no host"}, Case{"http://:80", "has no host"},
        Case{"http://host:0", "the port must be"}, Case{"http://host:65536", "the port must be"},
        Case{"http://host:", "the port must be"}, Case{"http://host:8x", "the port must be"},
        Case{"http://[::1", "closing bracket"}, Case{"http://[::1]8", "the port must be"},
        Case{"http://me@host", "must be http://HOST:PORT"},
        Case{"http://host/?q", "must be http://HOST:PORT"},
        Case{"http://host\r\nx: y", "must be http://HOST:PORT"}}) {
    const auto url = actors::parse_http_url(one.text);
    ASSERT_FALSE(url.ok()) << one.text;
    EXPECT_EQ(url.status().code(), Errc::kInvalidArgument);
    EXPECT_THAT(url.status().message(), HasSubstr(one.why));
  }
}

TEST(HttpClientTest, SendsARequestAndReadsTheBody) {
  OneResponse server({"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nx-A: b\r\ncontent-le",
                      "ngth: 5\r\n\r\nab", "cde"},
                     End::kClose);
  HttpClient client(server.url());
  HttpCall call;
  call.method = "POST";
  call.path = "/chat";
  call.headers = {{"accept", "text/plain"}};
  call.body = "{}";
  const auto reply = client.call(call);
  ASSERT_TRUE(reply.ok()) << reply.status().to_string();
  EXPECT_EQ(reply.value().response.status, 200U);
  EXPECT_EQ(reply.value().response.body, "abcde");
  ASSERT_FALSE(reply.value().response.headers.empty());
  EXPECT_EQ(reply.value().response.headers[0].name, "x-a");
  EXPECT_THAT(server.request(),
              ::testing::AllOf(::testing::StartsWith("POST /v1/chat HTTP/1.1\r\nhost: 127.0.0.1:"),
                               HasSubstr("\r\naccept: text/plain\r\ncontent-length: 2\r\n\r\n")));
}

TEST(HttpClientTest, GivesTheCallerPartsOfAChunkedBody) {
  OneResponse server(
      {"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n", "2\r\nde\r\n0\r\n\r\n"},
      End::kSilent);
  HttpClient client(server.url());
  std::string text;
  HttpCall call;
  call.on_part = [&](std::string_view part) { text += part; };
  const auto reply = client.call(call);
  ASSERT_TRUE(reply.ok()) << reply.status().to_string();
  EXPECT_EQ(text, "abcde");
  EXPECT_EQ(reply.value().response.body, "");
}

TEST(HttpClientTest, ReturnsTheBodyOfAnError) {
  OneResponse server({"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\nno"}, End::kClose);
  HttpClient client(server.url());
  HttpCall call;
  call.on_part = [](std::string_view) { ADD_FAILURE(); };
  const auto reply = client.call(call);
  ASSERT_TRUE(reply.ok()) << reply.status().to_string();
  EXPECT_EQ(reply.value().response.status, 404U);
  EXPECT_EQ(reply.value().response.body, "no");
}

TEST(HttpClientTest, BodiesWithoutALengthEndWithTheConnection) {
  EXPECT_TRUE(status_of({"HTTP/1.0 200 OK\r\n\r\nabc"}, End::kClose).ok());
}

TEST(HttpClientTest, ConnectsAgainIfTheServerHasClosed) {
  OneResponse first({"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"}, End::kClose);
  HttpClient client(first.url());
  EXPECT_TRUE(client.call({}).ok());
  static_cast<void>(first.request());
  // The listener still accepts connections, but nothing responds.
  HttpCall call;
  int asked = 0;
  call.is_cancelled = [&] { return ++asked > 1; };
  const auto reply = client.call(call);
  ASSERT_TRUE(reply.ok()) << reply.status().to_string();
  EXPECT_TRUE(reply.value().cancelled);
}

TEST(HttpClientTest, BrokenResponsesAreErrors) {
  struct Case {
    const char* bytes;
    const char* why;
  };
  for (const Case& one :
       {Case{"", "closed the connection without a response"},
        Case{"HTTP/1.1 200 OK\r\ncontent-le", "ended before the response did"},
        Case{"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab", "ended before the response did"},
        Case{"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab",
             "ended before the response did"},
        Case{"SSH-2.0-OpenSSH\r\n\r\n", "not valid HTTP"},
        Case{"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", "not valid HTTP"},
        Case{"HTTP/1.1 200 OK\r\ncontent-length: 999999999999\r\n\r\n", "too large"}}) {
    const Status status = status_of({one.bytes}, End::kClose);
    ASSERT_FALSE(status.ok()) << one.bytes;
    EXPECT_THAT(status.message(),
                ::testing::AllOf(::testing::StartsWith("127.0.0.1:"), HasSubstr(one.why)));
  }
  std::string interim;
  for (int i = 0; i < 100; ++i) {
    interim += "HTTP/1.1 100 Continue\r\n\r\n";
  }
  EXPECT_THAT(status_of({interim}, End::kClose).message(), HasSubstr("too many interim"));
  HttpClientLimits limits;
  limits.max_header_bytes = 200;
  EXPECT_EQ(status_of({"HTTP/1.1 200 OK\r\nx: " + std::string(300, 'y') + "\r\n\r\n"}, End::kClose,
                      limits)
                .code(),
            Errc::kCorruptData);
}

TEST(HttpClientTest, EveryWaitHasADeadline) {
  HttpClientLimits limits;
  limits.first_byte_time = limits.gap_time = 100ms;
  const Status silent = status_of({}, End::kSilent, limits);
  EXPECT_EQ(silent.code(), Errc::kTimeout);
  EXPECT_THAT(silent.message(), EndsWith("no response within 0.1 s"));
  const Status stopped = status_of({"HTTP/1.1 200 OK\r\n"}, End::kSilent, limits);
  EXPECT_EQ(stopped.code(), Errc::kTimeout);
  EXPECT_THAT(stopped.message(), HasSubstr("nothing arrived within"));
}

TEST(HttpClientTest, NamesTheAddressThatRefuses) {
  std::uint16_t port = 0;
  {
    const OneResponse closed({}, End::kClose);
    port = closed.url().port;
  }
  HttpClient client({"127.0.0.1", port, ""});
  const Status status = client.call({}).status();
  EXPECT_EQ(status.code(), Errc::kUnavailable);
  EXPECT_EQ(status.message(),
            "127.0.0.1:" + std::to_string(port) + ": cannot connect: Connection refused");
}

TEST(HttpClientTest, HeadersCannotHoldLineEnds) {
  HttpClient client({"127.0.0.1", 9, ""});
  HttpCall call;
  call.headers = {{"authorization", "Bearer a\r\nhost: evil"}};
  EXPECT_EQ(client.call(call).status().code(), Errc::kInvalidArgument);
}

std::vector<std::string> events_in(const std::string& text, std::size_t cut) {
  std::vector<std::string> events;
  actors::EventReader reader;
  for (std::size_t i = 0; i < text.size(); i += cut) {
    EXPECT_TRUE(
        reader.add(text.substr(i, cut), [&](const std::string& data) { events.push_back(data); })
            .ok());
  }
  return events;
}

TEST(EventReaderTest, FindsTheDataWhereverTheStreamIsCut) {
  const std::string text =
      ": comment\n\ndata: one\n\ndata:two\r\ndata: more\r\n\r\nevent: x\rdata:  three\r\r"
      "data\n\nid: 7\n\ndata: unfinished\n";
  for (std::size_t cut = 1; cut <= text.size(); ++cut) {
    EXPECT_THAT(events_in(text, cut), ElementsAre("one", "two\nmore", " three", "")) << cut;
  }
}

TEST(EventReaderTest, RefusesEndlessEvents) {
  actors::EventReader reader;
  const std::string part(std::size_t{1} << 20U, 'x');
  Status status;
  for (int i = 0; i < 17 && status.ok(); ++i) {
    status = reader.add(part, [](const std::string&) { ADD_FAILURE(); });
  }
  EXPECT_EQ(status.code(), Errc::kCorruptData);
}

}  // namespace
}  // namespace tidemill::test
