// SPDX-License-Identifier: Apache-2.0
// Connections over ZeroMQ whose other side breaks the rules: a plain socket of ZeroMQ, or none.
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <latch>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <system_error>
#include <thread>
#include <unistd.h>

#include <zmq.hpp>

#include "base/files/unique_fd.hpp"
#include "tests/transport/zmq_endpoint_fixture.hpp"
#include "transport/envelope.hpp"
#include "transport/zmq/zmq_side.hpp"

namespace tidemill::transport {
namespace {

using Parts = std::vector<std::string>;

// The messages of the protocol (transport/zmq/zmq_node.hpp).
const std::string kHello("\1\1", 2);
const std::string kAccepted("\2");
const std::string kRefusedVersion("\3\1");
const std::string kFrame("\4");
const std::string kBye("\6");

std::string consumed(unsigned char bytes) {
  std::string header("\5\0\0\0\0\0\0\0\0", 9);
  header[1] = static_cast<char>(bytes);
  return header;
}

// A DEALER or ROUTER socket without our code.
class PlainSocket {
public:
  explicit PlainSocket(zmq::socket_type type) : socket_(context_, type) {
    socket_.set(zmq::sockopt::linger, 0);
    socket_.set(zmq::sockopt::rcvtimeo, 60'000);
  }
  explicit PlainSocket(const ZmqEndpoint& endpoint) : PlainSocket(zmq::socket_type::dealer) {
    socket_.connect(endpoint.address());
  }

  zmq::socket_t& socket() { return socket_; }
  void send(const Parts& parts) {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      socket_.send(zmq::buffer(parts[i]),
                   i + 1 < parts.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
    }
  }
  // Returns the parts of the next message, or none after a minute.
  Parts receive() {
    Parts parts;
    zmq::message_t part;
    do {
      if (!socket_.recv(part)) {
        return {};
      }
      parts.push_back(part.to_string());
    } while (part.more());
    return parts;
  }
  // Opens a connection and returns its accepting side.
  std::unique_ptr<Connection> connect(ZmqEndpoint& endpoint) {
    send({kHello});
    EXPECT_EQ(receive(), Parts{kAccepted});
    return endpoint.accepted();
  }

private:
  zmq::context_t context_;
  zmq::socket_t socket_;
};

TEST(ZmqHostile, MessagesWithoutAHelloAreDropped) {
  ZmqEndpoint endpoint;
  ZmqConversation other(endpoint.connect());
  PlainSocket hostile(endpoint);
  for (int i = 0; i < 1000; ++i) {
    hostile.send({kFrame, "text"});
    hostile.send({""});
    hostile.send({"", ""});
    hostile.send({kBye});
    hostile.send({consumed(1)});
    hostile.send({std::string(100, '\xff')});
    hostile.send(Parts(20, "part"));
  }
  EXPECT_TRUE(other.round_trip());
  const std::unique_ptr<Connection> late = hostile.connect(endpoint);  // all were read by now
  EXPECT_EQ(endpoint.num_accepted(), 0U);
  EXPECT_TRUE(other.round_trip());
}

TEST(ZmqHostile, OtherVersionsAreRefused) {
  ZmqEndpoint endpoint;
  PlainSocket hostile(endpoint);
  for (const Parts& hello :
       std::vector<Parts>{{std::string("\1\2", 2)}, {"\1"}, {kHello + "x"}, {kHello, "more"}}) {
    hostile.send(hello);
    EXPECT_EQ(hostile.receive(), Parts{kRefusedVersion});
  }
  EXPECT_EQ(endpoint.num_accepted(), 0U);
}

TEST(ZmqHostile, MessagesAgainstTheRulesEndTheConnection) {
  ZmqEndpoint endpoint;
  ZmqConversation other(endpoint.connect());
  const std::string unknown =
      "corrupt_data: connection: the other side has sent an unknown message";
  const std::vector<std::pair<Parts, std::string>> rows = {
      {{""}, unknown},
      {{"\7"}, unknown},
      {{std::string(1000, '\0')}, unknown},
      {{kAccepted}, unknown},
      {{kRefusedVersion}, unknown},
      {{kFrame}, unknown},
      {{kFrame + "x", "text"}, unknown},
      {{kFrame, "text", "more"}, unknown},
      {Parts(1000, kFrame), unknown},
      {{kBye, ""}, unknown},
      {{consumed(0) + "x"}, unknown},
      {{consumed(1).substr(0, 8)}, unknown},
      {{consumed(1)},
       "corrupt_data: connection: the other side reports to have consumed 1 bytes of 0"},
      {{kBye}, "unavailable: the other side has closed the connection"},
  };
  for (const auto& [parts, reason] : rows) {
    PlainSocket hostile(endpoint);
    CountingListener listener;
    const std::unique_ptr<Connection> accepted = hostile.connect(endpoint);
    accepted->start(listener);
    hostile.send(parts);
    ASSERT_TRUE(eventually([&] { return !listener.reason().ok(); })) << reason;
    EXPECT_EQ(listener.reason().to_string(), reason);
    EXPECT_EQ(listener.frames(), 0U);
    if (listener.reason().code() == Errc::kCorruptData) {
      EXPECT_EQ(hostile.receive(), Parts{kBye});
    }
  }
  EXPECT_TRUE(other.round_trip());
}

TEST(ZmqHostile, FramesBeyondWhatMayBeInFlightEndTheConnection) {
  ZmqEndpoint endpoint;
  ZmqConversation other(endpoint.connect());
  PlainSocket hostile(endpoint);
  CountingListener listener;
  const std::unique_ptr<Connection> accepted = hostile.connect(endpoint);
  const std::string largest(kMaxEnvelopeBytes, 'x');
  static_assert(kMaxInFlightBytes < 3 * kMaxEnvelopeBytes);
  for (int i = 0; i < 3; ++i) {
    hostile.send({kFrame, largest});  // the listener is not started
  }
  EXPECT_EQ(hostile.receive(), Parts{kBye});
  accepted->start(listener);
  ASSERT_TRUE(eventually([&] { return !listener.reason().ok(); }));
  EXPECT_EQ(listener.reason().to_string(),
            "corrupt_data: connection: the other side has sent more than it may");
  EXPECT_EQ(listener.frames(), 2U);
  EXPECT_TRUE(other.round_trip());
}

TEST(ZmqHostile, AMessageThatIsTooLargeBreaksTheConnection) {
  ZmqEndpoint endpoint;
  ZmqConversation other(endpoint.connect());
  PlainSocket hostile(endpoint);
  CountingListener listener;
  const std::unique_ptr<Connection> accepted = hostile.connect(endpoint);
  accepted->start(listener);
  hostile.send({kFrame, std::string(kMaxEnvelopeBytes + 1, 'x')});
  ASSERT_TRUE(eventually([&] { return !listener.reason().ok(); }));
  EXPECT_EQ(listener.reason().to_string(), "unavailable: the connection has broken");
  EXPECT_TRUE(other.round_trip());
}

TEST(ZmqHostile, EachHelloReplacesTheConnectionBefore) {
  ZmqEndpoint endpoint;
  PlainSocket hostile(endpoint);
  constexpr std::size_t kHellos = 1000;
  for (std::size_t i = 0; i < kHellos; ++i) {
    hostile.send({kHello});
  }
  std::vector<std::unique_ptr<Connection>> accepted;
  for (std::size_t i = 0; i < kHellos; ++i) {
    const Parts reply = hostile.receive();
    if (reply == Parts{kAccepted}) {
      accepted.push_back(endpoint.accepted());
    } else {
      EXPECT_EQ(reply, Parts{"\3\2"});
    }
  }
  EXPECT_EQ(accepted.size(), kMaxZmqConnections);
  for (std::unique_ptr<Connection>& connection : accepted) {
    CountingListener listener;
    connection->start(listener);
    EXPECT_TRUE(eventually([&] { return !listener.reason().ok(); }));
    EXPECT_EQ(listener.reason().to_string(), "unavailable: the other side has connected anew");
    connection.reset();
  }
  EXPECT_TRUE(ZmqConversation(endpoint.connect()).round_trip());
}

TEST(ZmqHostile, ARoutingIdBelongsToOneConnection) {
  ZmqEndpoint endpoint;
  PlainSocket first(zmq::socket_type::dealer);
  first.socket().set(zmq::sockopt::routing_id, "the same");
  first.socket().connect(endpoint.address());
  CountingListener listener;
  const std::unique_ptr<Connection> accepted = first.connect(endpoint);
  accepted->start(listener);

  PlainSocket second(zmq::socket_type::dealer);
  second.socket().set(zmq::sockopt::routing_id, "the same");
  second.socket().connect(endpoint.address());
  second.send({kFrame, "text"});
  ASSERT_TRUE(eventually([&] { return !listener.reason().ok(); }));
  EXPECT_EQ(listener.frames(), 0U);
}

// Peers that connect and then do nothing, with and without the handshake of ZeroMQ.
TEST(ZmqHostile, SilentPeersDelayNoOther) {
  ZmqEndpoint endpoint;
  zmq::context_t context;
  std::vector<zmq::socket_t> dealers;
  std::vector<UniqueFd> sockets;
  const sockaddr_un address = socket_address_of(endpoint.path());
  for (int i = 0; i < 100; ++i) {
    dealers.emplace_back(context, zmq::socket_type::dealer);
    dealers.back().set(zmq::sockopt::linger, 0);
    dealers.back().connect(endpoint.address());
    sockets.emplace_back(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::connect(sockets.back().get(), reinterpret_cast<const sockaddr*>(&address),
                        sizeof(address)),
              0);
  }
  ZmqConversation talk(endpoint.connect());
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(talk.round_trip());
  }
}

TEST(ZmqHostile, ASocketWithoutZeroMqIsClosed) {
  ZmqEndpoint endpoint;
  ZmqConversation other(endpoint.connect());
  const sockaddr_un address = socket_address_of(endpoint.path());
  const std::string greeting("\xff\0\0\0\0\0\0\0\1\x7f\3\0NULL", 16);
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\n\r\n") + std::string(1000, 'x'), std::string(5000, '\0'),
        std::string(5000, '\xff'), greeting + std::string(5000, '\xff')}) {
    const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
              0);
    (void)::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    std::array<char, 1000> reply{};
    ssize_t size = 0;
    do {  // ZeroMQ may greet before it closes
      size = ::recv(socket.get(), reply.data(), reply.size(), 0);
    } while (size > 0);
    EXPECT_TRUE(size == 0 || errno == ECONNRESET) << std::strerror(errno);
    EXPECT_TRUE(other.round_trip());
  }
}

// -- a lack of threads ---------------------------------------------------------------------------

// Lets this process start no thread while it exists: little address space is left, and the stacks
// of earlier threads, which the system keeps, are in use.
class NoThreadLeft {
public:
  NoThreadLeft() {
    std::ifstream pages("/proc/self/statm");
    std::uint64_t used = 0;
    pages >> used;
    TIDEMILL_CHECK(::getrlimit(RLIMIT_AS, &before_) == 0);
    rlimit limit = before_;
    constexpr std::uint64_t kForBuffers = 4 << 20;  // less than the stack of a thread
    limit.rlim_cur = used * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) + kForBuffers;
    TIDEMILL_CHECK(::setrlimit(RLIMIT_AS, &limit) == 0);
    try {
      for (;;) {
        threads_.emplace_back([this] { end_.wait(); });
      }
    } catch (const std::system_error&) {
    }
  }
  NoThreadLeft(const NoThreadLeft&) = delete;
  NoThreadLeft& operator=(const NoThreadLeft&) = delete;
  ~NoThreadLeft() {
    ::setrlimit(RLIMIT_AS, &before_);
    end_.count_down();
    for (std::thread& thread : threads_) {
      thread.join();
    }
  }

private:
  rlimit before_{};
  std::latch end_{1};
  std::vector<std::thread> threads_;
};

TEST(ZmqResources, AConnectionWithoutAThreadIsRefusedAndTheAcceptorGoesOn) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP()
      << "not run: the address sanitizer reserves more address space than any limit allows";
#endif
  ZmqEndpoint endpoint;
  ZmqConversation other(endpoint.connect());
  PlainSocket late(endpoint);
  {
    const NoThreadLeft limited;
    late.send({kHello});
    EXPECT_EQ(late.receive(), Parts{"\3\3"});
  }
  EXPECT_EQ(endpoint.num_accepted(), 0U);
  EXPECT_TRUE(other.round_trip());
  EXPECT_TRUE(ZmqConversation(endpoint.connect()).round_trip());
}

// -- a listening process that breaks the rules ---------------------------------------------------

TEST(ZmqHostile, AListenerMayNotReplyWhatItLikes) {
  ZmqEndpoint endpoint;
  endpoint.stop_listening();
  PlainSocket hostile(zmq::socket_type::router);
  hostile.socket().bind(endpoint.address());
  const std::vector<std::pair<Parts, std::string>> rows = {
      {{""}, "the listening process speaks another protocol"},
      {{"text", "text", "text"}, "the listening process speaks another protocol"},
      {{kFrame, "text"}, "the listening process speaks another protocol"},
      {{kRefusedVersion}, "the listening process speaks another version of the protocol"},
      {{"\3\2"}, "the listening process takes no more connections"},
      {{"\3\3"}, "the listening process has no thread left for a connection"},
  };
  for (const auto& [reply, reason] : rows) {
    std::thread listener([&hostile, &reply = reply] {
      Parts parts{hostile.receive()[0]};
      parts.insert(parts.end(), reply.begin(), reply.end());
      hostile.send(parts);
    });
    EXPECT_EQ(endpoint.try_connect().status().to_string(),
              "unavailable: " + endpoint.address() + ": " + reason);
    listener.join();
  }
}

TEST(ZmqHostile, AListenerMayNotSendWhatItLikes) {
  ZmqEndpoint endpoint;
  endpoint.stop_listening();
  PlainSocket hostile(zmq::socket_type::router);
  hostile.socket().bind(endpoint.address());
  for (const Parts& message :
       std::vector<Parts>{{"text"}, {kHello}, {kAccepted}, {kFrame, "a", "b"}, {consumed(1)}}) {
    std::thread listener([&] {
      const std::string route = hostile.receive()[0];
      hostile.send({route, kAccepted});
      Parts parts{route};
      parts.insert(parts.end(), message.begin(), message.end());
      hostile.send(parts);
    });
    CountingListener at_connection;
    const auto connection = endpoint.try_connect().value();
    connection->start(at_connection);
    listener.join();
    ASSERT_TRUE(eventually([&] { return !at_connection.reason().ok(); }));
    EXPECT_EQ(at_connection.reason().code(), Errc::kCorruptData);
    EXPECT_EQ(hostile.receive().back(), kBye);
  }
}

}  // namespace
}  // namespace tidemill::transport
