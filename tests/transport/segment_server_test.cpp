// SPDX-License-Identifier: Apache-2.0
// Servers with clients that break the rules. None of them affects another connection.
#include <algorithm>
#include <array>
#include <cstddef>
#include <fcntl.h>
#include <filesystem>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <poll.h>
#include <string>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/temporary_directory.hpp"
#include "tests/transport/segment_fixture.hpp"
#include "transport/segments/segment_wire.hpp"

namespace tidemill::transport {
namespace {

using segment_wire::AboutSegment;
using segment_wire::bytes_of;
using segment_wire::Descriptors;
using segment_wire::Hello;
using segment_wire::Kind;
using segment_wire::Packet;
using segment_wire::Transfer;

using Bytes = std::vector<std::byte>;

// A client that sends what it likes.
class RawClient {
public:
  explicit RawClient(const std::filesystem::path& path)
      : socket_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::ranges::copy(path.native(), static_cast<char*>(address.sun_path));
    connected_ =
        ::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }

  [[nodiscard]] bool connected() const { return connected_; }
  Transfer send(std::span<const std::byte> bytes, int descriptor = -1) {
    return segment_wire::send_packet(socket_.get(), bytes, descriptor);
  }
  // Waits until the socket takes a packet. Returns whether it has, or the server has closed it.
  [[nodiscard]] bool send_waiting(std::span<const std::byte> bytes) {
    Transfer sent = send(bytes);
    while (sent == Transfer::kWouldBlock) {
      pollfd event{socket_.get(), POLLOUT, 0};
      EXPECT_EQ(::poll(&event, 1, kWaitMs), 1) << "the server neither reads nor closes";
      sent = send(bytes);
    }
    return sent == Transfer::kDone;
  }
  template <class Message>
  void tell(const Message& message) {
    static_cast<void>(send(bytes_of(message)));
  }

  // Waits for the next packet; nothing if the server closes the connection.
  std::unique_ptr<Packet> receive() {
    auto packet = std::make_unique<Packet>();
    pollfd event{socket_.get(), POLLIN, 0};
    EXPECT_EQ(::poll(&event, 1, kWaitMs), 1) << "neither a packet nor the end";
    return segment_wire::receive_packet(socket_.get(), Descriptors::kOne, *packet) ==
                   Transfer::kDone
               ? std::move(packet)
               : nullptr;
  }

  // Reads until the server closes the connection.
  void expect_closed(const std::string& name) {
    for (int i = 0; i < 1000; ++i) {
      if (receive() == nullptr) {
        return;
      }
    }
    ADD_FAILURE() << name << ": the connection is open";
  }

private:
  UniqueFd socket_;
  bool connected_ = false;
};

class SegmentServerTest : public ::testing::Test {
protected:
  void serve(Duration max_hello_wait = kTestWait, Duration max_send_wait = kTestWait) {
    SegmentServerOptions options;
    options.path = path();
    options.max_hello_wait = max_hello_wait;
    options.max_send_wait = max_send_wait;
    options.on_closed = [this](const Status& status) {
      const std::lock_guard lock(mutex_);
      closed_.push_back(status.to_string());
    };
    server_ = SegmentServer::listen(pool_, options).value();
  }

  [[nodiscard]] std::filesystem::path path() const { return directory_.path() / "s"; }

  Hello hello(std::uint32_t reader) {
    EXPECT_TRUE(pool_.add_reader({reader, token_of(reader), 64 << 20}).ok());
    Hello message;
    message.reader = reader;
    message.token = token_of(reader);
    return message;
  }

  // A client that the server takes for a reader.
  std::unique_ptr<RawClient> admitted(std::uint32_t reader) {
    auto client = std::make_unique<RawClient>(path());
    client->tell(hello(reader));
    const auto packet = client->receive();
    EXPECT_TRUE(packet != nullptr && segment_wire::kind_of(*packet) == Kind::kWelcome);
    return client;
  }

  std::unique_ptr<SegmentReader> honest(std::uint32_t reader) {
    EXPECT_TRUE(pool_.add_reader({reader, token_of(reader), 64 << 20}).ok());
    SegmentReaderOptions options;
    options.path = path();
    options.reader = reader;
    options.token = token_of(reader);
    return SegmentReader::connect(options).value();
  }

  BufferIdentity sent(std::size_t size, std::uint64_t seed, std::uint32_t reader) {
    const Buffer buffer = patterned(pool_, size, seed).value();
    EXPECT_TRUE(pool_.lend(buffer, reader).ok());
    return buffer.identity();
  }

  [[nodiscard]] std::string last_closed() {
    const std::lock_guard lock(mutex_);
    return closed_.empty() ? "" : closed_.back();
  }

  test::TemporaryDirectory directory_;
  std::mutex mutex_;
  std::vector<std::string> closed_;  // why the server has closed connections
  SegmentPool pool_{small_pool()};
  std::unique_ptr<SegmentServer> server_;
};

Bytes release_of(std::uint32_t count, const std::vector<ReturnedLoans>& loans) {
  const segment_wire::Release header{Kind::kRelease, count};
  Bytes bytes(bytes_of(header).begin(), bytes_of(header).end());
  for (const ReturnedLoans& each : loans) {
    bytes.insert(bytes.end(), bytes_of(each).begin(), bytes_of(each).end());
  }
  return bytes;
}

template <class Message>
Bytes copied(const Message& message, std::size_t size = sizeof(Message)) {
  Bytes bytes(bytes_of(message).begin(), bytes_of(message).end());
  bytes.resize(size);
  return bytes;
}

TEST_F(SegmentServerTest, ClosesStrangersThatDoNotPresentThemselves) {
  serve();
  const auto reader = honest(1);
  const BufferIdentity lent = sent(10'000, 1, 1);
  Hello wrong_magic = hello(50);
  wrong_magic.magic += 1;
  Hello wrong_kind = hello(51);
  wrong_kind.kind = Kind::kWelcome;
  const std::pair<std::string, Bytes> cases[] = {
      {"garbage", Bytes(33, std::byte{0xee})},
      {"one byte", Bytes(1)},
      {"half a hello", copied(hello(52), sizeof(Hello) / 2)},
      {"a long hello", copied(hello(53), sizeof(Hello) + 1)},
      {"the largest packet", Bytes(segment_wire::kMaxPacketBytes)},
      {"a larger packet", Bytes(segment_wire::kMaxPacketBytes + 1)},
      {"another magic number", copied(wrong_magic)},
      {"another kind", copied(wrong_kind)},
      {"a request first", copied(AboutSegment{Kind::kMap, 0, lent.segment})},
      {"a return first", release_of(1, {{lent.segment, 0, 1}})},
      {"an empty packet", Bytes()},
  };
  for (const auto& [name, bytes] : cases) {
    RawClient client(path());
    ASSERT_TRUE(client.connected()) << name;
    static_cast<void>(client.send(bytes));
    client.expect_closed(name);
  }
  EXPECT_TRUE(has_pattern(reader->resolve(lent).value(), 1));
}

TEST_F(SegmentServerTest, SaysWhyItRefusesAReader) {
  serve();
  Hello later_version = hello(2);
  later_version.version += 1;
  Hello wrong_token = hello(3);
  wrong_token.token[15] ^= std::byte{1};
  Hello unknown;
  unknown.reader = 99;
  const auto first = admitted(4);
  Hello second = hello(5);
  second.reader = 4;
  second.token = token_of(4);
  const std::pair<Hello, segment_wire::Refusal> cases[] = {
      {later_version, segment_wire::Refusal::kVersion},
      {wrong_token, segment_wire::Refusal::kUnknownReader},
      {unknown, segment_wire::Refusal::kUnknownReader},
      {second, segment_wire::Refusal::kConnectedBefore},
  };
  for (const auto& [message, reason] : cases) {
    RawClient client(path());
    client.tell(message);
    const auto packet = client.receive();
    ASSERT_NE(packet, nullptr);
    const auto refused = segment_wire::read_as<segment_wire::Refused>(*packet);
    ASSERT_TRUE(refused.has_value());
    EXPECT_EQ(refused->reason, reason);
    client.expect_closed("refused");
  }
  EXPECT_NE(last_closed().find("reader 4 has connected before"), std::string::npos);
  SegmentReaderOptions options;
  options.path = path();
  options.reader = 3;
  options.token = token_of(77);
  EXPECT_EQ(SegmentReader::connect(options).status().code(), Errc::kNotFound);
  // The first connection is not affected.
  first->tell(AboutSegment{Kind::kMap, 0, 12345});
  EXPECT_NE(first->receive(), nullptr);
}

TEST_F(SegmentServerTest, ClosesReadersThatBreakTheRules) {
  serve();
  const auto reader = honest(1);
  const BufferIdentity lent = sent(10'000, 1, 1);
  std::uint32_t number = 10;
  const auto send = [&](const std::string& name, auto make_packets) {
    const std::uint32_t self = ++number;
    const auto client = admitted(self);
    const BufferIdentity own = sent(10'000, 2, self);
    for (const Bytes& bytes : make_packets(own)) {
      static_cast<void>(client->send(bytes));
    }
    client->expect_closed(name);
    EXPECT_EQ(pool_.lent_bytes(self), 0U) << name;
    EXPECT_NE(last_closed().find("closed the connection of reader " + std::to_string(self)),
              std::string::npos)
        << name << ": " << last_closed();
  };
  using Packets = std::vector<Bytes>;
  send("garbage", [](auto) { return Packets{Bytes(100, std::byte{0xff})}; });
  send("two bytes", [](auto) { return Packets{Bytes(2)}; });
  send("a message of servers", [](auto own) {
    return Packets{copied(AboutSegment{Kind::kUnmap, 0, own.segment})};
  });
  send("half a request", [](auto own) {
    return Packets{copied(AboutSegment{Kind::kMap, 0, own.segment}, 12)};
  });
  send("a segment twice", [](auto own) {
    const Bytes map = copied(AboutSegment{Kind::kMap, 0, own.segment});
    return Packets{map, map};
  });
  send("unmaps what it has not mapped", [](auto own) {
    return Packets{copied(AboutSegment{Kind::kUnmapped, 0, own.segment})};
  });
  send("returns more than it holds", [](auto own) {
    return Packets{release_of(1, {{own.segment, 0, 2}})};
  });
  send("returns twice", [](auto own) {
    return Packets{release_of(2, {{own.segment, 0, 1}, {own.segment, 0, 1}})};
  });
  send("returns the loan of another reader", [&](auto) {
    return Packets{release_of(1, {{lent.segment, 0, 1}})};
  });
  send("returns another generation", [](auto own) {
    return Packets{release_of(1, {{own.segment, 7, 1}})};
  });
  send("returns nothing", [](auto own) { return Packets{release_of(1, {{own.segment, 0, 0}})}; });
  send("a count without loans", [](auto) { return Packets{release_of(5, {})}; });
  send("a count that is too large", [](auto own) {
    return Packets{release_of(0xFFFF'FFFF, {{own.segment, 0, 1}})};
  });
  send("loans without a count", [](auto own) {
    return Packets{release_of(0, {{own.segment, 0, 1}})};
  });
  send("a second hello", [](auto) { return Packets{copied(Hello())}; });
  EXPECT_TRUE(has_pattern(reader->resolve(lent).value(), 1)) << "its loan was not affected";
}

TEST_F(SegmentServerTest, GivesSegmentsOnlyToReadersWithALoan) {
  serve();
  const auto with = admitted(1);
  const auto without = admitted(2);
  const BufferIdentity lent = sent(10'000, 1, 1);
  without->tell(AboutSegment{Kind::kMap, 0, lent.segment});
  const auto refused = without->receive();
  ASSERT_NE(refused, nullptr);
  EXPECT_EQ(segment_wire::kind_of(*refused), Kind::kUnlent);
  EXPECT_FALSE(refused->descriptor.is_open());
  with->tell(AboutSegment{Kind::kMap, 0, lent.segment});
  const auto given = with->receive();
  ASSERT_NE(given, nullptr);
  EXPECT_EQ(segment_wire::kind_of(*given), Kind::kSegment);
  EXPECT_TRUE(given->descriptor.is_open());
}

TEST_F(SegmentServerTest, ClosesClientsThatSendDescriptors) {
  serve();
  const auto client = admitted(1);
  const BufferIdentity own = sent(10'000, 2, 1);
  const AboutSegment message{Kind::kMap, 0, own.segment};
  EXPECT_EQ(client->send(bytes_of(message), STDIN_FILENO), Transfer::kDone);
  client->expect_closed("a descriptor");
}

TEST_F(SegmentServerTest, ClosesSilentStrangersAtTheirDeadline) {
  serve(std::chrono::milliseconds(1));
  RawClient client(path());
  client.expect_closed("silent");
  EXPECT_NE(last_closed().find("it did not present itself in time"), std::string::npos);
}

TEST_F(SegmentServerTest, OneStrangerTooManyClosesTheOldest) {
  serve();
  std::vector<std::unique_ptr<RawClient>> strangers;
  for (std::size_t i = 0; i < kMaxStrangers; ++i) {
    strangers.push_back(std::make_unique<RawClient>(path()));
  }
  const auto reader = honest(1);
  strangers.front()->expect_closed("the oldest");
  strangers.back()->tell(hello(2));
  EXPECT_NE(strangers.back()->receive(), nullptr) << "the last one is open";
  EXPECT_TRUE(has_pattern(reader->resolve(sent(100, 1, 1)).value(), 1));
}

// A client that never reads its socket: the server stops reading from it, and closes it later.
TEST_F(SegmentServerTest, ClosesReadersThatDoNotTakeTheirSegments) {
  serve(kTestWait, std::chrono::milliseconds(1));
  const auto reader = honest(1);
  const BufferIdentity lent = sent(10'000, 1, 1);
  const auto client = admitted(2);
  std::vector<BufferIdentity> many;
  for (std::uint64_t i = 0; i < 600; ++i) {
    many.push_back(sent(8193, i, 2));
  }
  Event returned;
  pool_.when_room(4 << 20, [&] { returned.set(); });
  EXPECT_FALSE(returned.happened());
  for (const BufferIdentity& identity : many) {
    const AboutSegment message{Kind::kMap, 0, identity.segment};
    if (!client->send_waiting(bytes_of(message))) {
      break;
    }
  }
  EXPECT_TRUE(returned.wait()) << "the loans are returned";
  EXPECT_EQ(pool_.lent_bytes(2), 0U);
  EXPECT_TRUE(has_pattern(reader->resolve(lent).value(), 1));
}

// -- the socket
// ------------------------------------------------------------------------------------

TEST_F(SegmentServerTest, OnlyTheUserMayConnect) {
  serve();
  struct stat found {};
  ASSERT_EQ(::stat(path().c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777U, 0600U);
  server_.reset();
  EXPECT_FALSE(std::filesystem::exists(path())) << "it removes its socket";
}

TEST_F(SegmentServerTest, ReplacesTheSocketOfAProcessThatWasKilled) {
  const auto listen = [&](const std::filesystem::path& at) {
    SegmentServerOptions options;
    options.path = at;
    return SegmentServer::listen(pool_, options).status();
  };
  {
    const UniqueFd stale(::socket(AF_UNIX, SOCK_SEQPACKET, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::ranges::copy(path().native(), static_cast<char*>(address.sun_path));
    ASSERT_EQ(::bind(stale.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  serve();
  EXPECT_EQ(listen(path()).code(), Errc::kInvalidArgument) << "this one is alive";
  const auto reader = honest(1);
  const std::filesystem::path file = directory_.path() / "file";
  ASSERT_EQ(::close(::open(file.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600)), 0);
  EXPECT_EQ(listen(file).code(), Errc::kInvalidArgument);
  EXPECT_TRUE(std::filesystem::exists(file));
  EXPECT_EQ(listen(directory_.path() / std::string(108, 'x')).code(), Errc::kInvalidArgument);
  EXPECT_FALSE(listen(directory_.path() / "missing" / "s").ok());
}

TEST_F(SegmentServerTest, APathMayBeLongerThanAnAddress) {
  const std::filesystem::path folder = directory_.path() / std::string(100, 'x') / "y";
  std::filesystem::create_directories(folder);
  SegmentServerOptions options;
  options.path = folder / "s";
  const auto server = SegmentServer::listen(pool_, options);
  ASSERT_TRUE(server.ok()) << server.status().to_string();
  SegmentReaderOptions reader;
  reader.path = options.path;
  // The server replies: it knows no such reader.
  EXPECT_EQ(SegmentReader::connect(reader).status().code(), Errc::kNotFound);
}

TEST_F(SegmentServerTest, ConnectingFailsWithoutAServer) {
  SegmentReaderOptions options;
  options.path = path();
  options.max_connect_wait = std::chrono::milliseconds(1);
  EXPECT_EQ(SegmentReader::connect(options).status().code(), Errc::kUnavailable);
  options.path = directory_.path() / std::string(108, 'x');
  EXPECT_EQ(SegmentReader::connect(options).status().code(), Errc::kInvalidArgument);
  // A process that accepts and says nothing.
  const UniqueFd silent(::socket(AF_UNIX, SOCK_SEQPACKET, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::ranges::copy(path().native(), static_cast<char*>(address.sun_path));
  ASSERT_EQ(::bind(silent.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(::listen(silent.get(), 1), 0);
  options.path = path();
  const Status status = SegmentReader::connect(options).status();
  EXPECT_EQ(status.code(), Errc::kUnavailable);
  EXPECT_NE(status.message().find("did not respond in time"), std::string::npos);
}

// The space for one descriptor has room for two.
TEST(SegmentWire, DescriptorsBeyondOneAreClosedAndRefused) {
  const auto num_open = [] {
    const std::filesystem::directory_iterator files("/proc/self/fd");
    return std::distance(begin(files), end(files));
  };
  std::array<int, 2> pair{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.data()), 0);
  const UniqueFd sender(pair[0]);
  const UniqueFd receiver(pair[1]);
  const auto before = num_open();
  for (const std::size_t count : {2U, 3U}) {
    char text = 'x';
    iovec part{&text, 1};
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(3 * sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(count * sizeof(int));
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(count * sizeof(int));  // of descriptor 0, several times
    ASSERT_EQ(::sendmsg(sender.get(), &message, 0), 1);
    const auto packet = std::make_unique<Packet>();
    EXPECT_EQ(segment_wire::receive_packet(receiver.get(), Descriptors::kOne, *packet),
              Transfer::kMalformed);
    EXPECT_FALSE(packet->descriptor.is_open());
    EXPECT_EQ(num_open(), before) << count;
  }
}

// A reader closes a connection whose server breaks the rules.
TEST_F(SegmentServerTest, AReaderRefusesAServerThatBreaksTheRules) {
  const UniqueFd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::ranges::copy(path().native(), static_cast<char*>(address.sun_path));
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(::listen(listener.get(), 8), 0);
  SegmentReaderOptions options;
  options.path = path();
  const segment_wire::Welcome welcome{Kind::kWelcome, 3, 7};
  segment_wire::Welcome far_index = welcome;
  far_index.index = kMaxSegmentReaders;
  for (const Bytes& first : {Bytes(5), copied(far_index), copied(welcome, 15), copied(Hello())}) {
    std::thread server([&] {
      const UniqueFd client(::accept(listener.get(), nullptr, nullptr));
      static_cast<void>(segment_wire::send_packet(client.get(), first));
    });
    EXPECT_EQ(SegmentReader::connect(options).status().code(), Errc::kUnavailable);
    server.join();
  }
  const segment_wire::Segment not_asked{Kind::kSegment, 0, 1, 4096};
  for (const Bytes& second : {Bytes(5), copied(not_asked), copied(welcome), Bytes(5000)}) {
    Event lost;
    options.on_lost = [&](const Status&) { lost.set(); };
    UniqueFd client;
    std::thread server([&] {
      client = UniqueFd(::accept(listener.get(), nullptr, nullptr));
      static_cast<void>(segment_wire::send_packet(client.get(), bytes_of(welcome)));
      static_cast<void>(segment_wire::send_packet(client.get(), second));
    });
    const auto reader = SegmentReader::connect(options);
    server.join();
    ASSERT_TRUE(reader.ok()) << reader.status().to_string();
    EXPECT_TRUE(lost.wait());
    EXPECT_EQ(reader.value()->resolve({7, 1, 0, 0, 10, DType::kU8}).status().code(),
              Errc::kUnavailable);
  }
}

}  // namespace
}  // namespace tidemill::transport
