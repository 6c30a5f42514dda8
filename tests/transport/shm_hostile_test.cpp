// SPDX-License-Identifier: Apache-2.0
// Processes that break the rules of connections through shared memory, and lacks of resources.
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <thread>
#include <utility>
#include <vector>

#include "base/files/unique_fd.hpp"
#include "base/random.hpp"
#include "tests/support/soft_limit.hpp"
#include "tests/transport/recording_listener.hpp"
#include "tests/transport/shm_host.hpp"
#include "transport/envelope.hpp"
#include "transport/shm/shm_memory.hpp"
#include "transport/shm/shm_rendezvous.hpp"
#include "transport/shm/shm_ring.hpp"
#include "transport/shm/shm_sleep.hpp"

namespace tidemill::transport {
namespace {

using shm::Role;
using test::next_descriptor;
using test::SoftLimit;

TimePoint patience_from_now() {
  return SystemClock().now() + kPatience;
}

UniqueFd connect_raw(const std::filesystem::path& path) {
  auto opened = SocketPath::open(path);
  TIDEMILL_CHECK(opened.ok()) << opened.status().to_string();
  auto socket = connect_socket(opened.value(), patience_from_now());
  TIDEMILL_CHECK(socket.ok()) << socket.status().to_string();
  return std::move(socket).value();
}

void send_packet(int socket, std::span<const std::byte> bytes, std::vector<int> descriptors = {}) {
  iovec content{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(3 * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &content;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    const std::size_t size = descriptors.size() * sizeof(int);
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(size);
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(size);
    std::memcpy(CMSG_DATA(header), descriptors.data(), size);
  }
  TIDEMILL_CHECK(::sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()))
      << errno;
}

std::span<const std::byte> bytes_of(const shm::Hello& hello) {
  return std::as_bytes(std::span(&hello, 1));
}

// Returns the outcome that the acceptor sends, or nothing if it closes the socket.
std::optional<shm::HelloOutcome> outcome_at(int socket) {
  shm::HelloReply reply;
  const ssize_t size = ::recv(socket, &reply, sizeof(reply), 0);
  if (size <= 0) {
    return std::nullopt;
  }
  EXPECT_EQ(size, static_cast<ssize_t>(sizeof(reply)));
  EXPECT_EQ(reply.version, shm::kHandshakeVersion);
  return reply.outcome;
}

// -- the handshake -------------------------------------------------------------------------------

constexpr std::size_t kRing = 4096;
constexpr std::size_t kMemory = shm::kControlBytes + 2 * kRing;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

UniqueFd memory_file(std::size_t size, int seals) {
  UniqueFd file(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  TIDEMILL_CHECK(::ftruncate(file.get(), static_cast<off_t>(size)) == 0 &&
                 ::fcntl(file.get(), F_ADD_SEALS, seals) == 0);
  return file;
}

struct BadHello {
  const char* name;
  std::function<void(int socket)> send;
  std::optional<shm::HelloOutcome> outcome;
};

shm::Hello good_hello() {
  shm::Hello hello;
  hello.ring_bytes = kRing;
  return hello;
}

// Sends a hello with memory of that size and those seals.
std::function<void(int)> with_memory(std::size_t size, int seals, std::uint64_t ring = kRing) {
  return [=](int socket) {
    shm::Hello hello;
    hello.ring_bytes = ring;
    send_packet(socket, bytes_of(hello), {memory_file(size, seals).get()});
  };
}

// Sends a hello that was changed, with valid memory.
std::function<void(int)> changed(const std::function<void(shm::Hello&)>& change) {
  return [=](int socket) {
    shm::Hello hello = good_hello();
    change(hello);
    send_packet(socket, bytes_of(hello), {memory_file(kMemory, kSeals).get()});
  };
}

// Sends a valid hello with other descriptors than one of memory.
std::function<void(int)> with_descriptors(const std::vector<int>& descriptors) {
  return [=](int socket) { send_packet(socket, bytes_of(good_hello()), descriptors); };
}

// Sends the first bytes of a hello and of what follows it.
std::function<void(int)> of_size(std::size_t size) {
  return [=](int socket) {
    std::vector<std::byte> bytes(sizeof(shm::Hello) + 100);
    const shm::Hello hello = good_hello();
    std::memcpy(bytes.data(), &hello, sizeof(hello));
    send_packet(socket, std::span(bytes).first(size), {memory_file(kMemory, kSeals).get()});
  };
}

std::vector<BadHello> bad_hellos() {
  using shm::HelloOutcome;
  return {
      {"nothing", [](int socket) { ::shutdown(socket, SHUT_WR); }, std::nullopt},
      {"magic", changed([](shm::Hello& hello) { hello.magic[0] = 'x'; }), std::nullopt},
      {"version", changed([](shm::Hello& hello) { ++hello.version; }), HelloOutcome::kOtherVersion},
      {"too short", of_size(sizeof(shm::Hello) - 1), std::nullopt},
      {"too long", of_size(sizeof(shm::Hello) + 1), std::nullopt},
      {"much too long", of_size(sizeof(shm::Hello) + 100), std::nullopt},
      {"no descriptor", with_descriptors({}), std::nullopt},
      {"two descriptors", with_descriptors({0, 0}), std::nullopt},
      {"three descriptors", with_descriptors({0, 0, 0}), std::nullopt},
      {"no memory", with_descriptors({0}), HelloOutcome::kBadMemory},
      {"not sealed", with_memory(kMemory, 0), HelloOutcome::kBadMemory},
      {"may shrink", with_memory(kMemory, F_SEAL_GROW | F_SEAL_SEAL), HelloOutcome::kBadMemory},
      {"may grow", with_memory(kMemory, F_SEAL_SHRINK | F_SEAL_SEAL), HelloOutcome::kBadMemory},
      {"more seals may follow", with_memory(kMemory, F_SEAL_SHRINK | F_SEAL_GROW),
       HelloOutcome::kBadMemory},
      {"read-only", with_memory(kMemory, kSeals | F_SEAL_WRITE), HelloOutcome::kBadMemory},
      {"too small", with_memory(kMemory - 1, kSeals), HelloOutcome::kBadMemory},
      {"too large", with_memory(kMemory + 1, kSeals), HelloOutcome::kBadMemory},
      {"empty", with_memory(0, kSeals), HelloOutcome::kBadMemory},
      {"no ring", with_memory(shm::kControlBytes, kSeals, 0), HelloOutcome::kBadMemory},
      {"odd ring", with_memory(shm::kControlBytes + 10'000, kSeals, 5000),
       HelloOutcome::kBadMemory},
      {"size that overflows", with_memory(kMemory, kSeals, std::uint64_t{1} << 63U),
       HelloOutcome::kBadMemory},
  };
}

TEST(ShmHostile, BadHandshakesAreRefused) {
  ShmHost host;
  const std::vector<BadHello> cases = bad_hellos();
  ASSERT_EQ(cases.size(), 21U);
  for (const BadHello& bad : cases) {
    const UniqueFd socket = connect_raw(host.socket());
    bad.send(socket.get());
    EXPECT_EQ(outcome_at(socket.get()), bad.outcome) << bad.name;
  }
  EXPECT_EQ(host.num_accepted(), 0U);
  const UniqueFd socket = connect_raw(host.socket());
  with_memory(kMemory, kSeals)(socket.get());
  EXPECT_EQ(outcome_at(socket.get()), shm::HelloOutcome::kAccepted);
  EXPECT_NE(host.accepted(), nullptr);
}

TEST(ShmHostile, ASilentProcessDoesNotDelayOthers) {
  ShmOptions options;
  options.handshake_timeout = std::chrono::hours(1);
  ShmHost host(options);
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 3; ++i) {
    silent.push_back(connect_raw(host.socket()));
  }
  EXPECT_TRUE(make_shm_connector(host.socket())->connect(kPatience).ok());
  // One more than the limit: the oldest one goes.
  while (silent.size() <= kMaxPendingHandshakes) {
    silent.push_back(connect_raw(host.socket()));
  }
  EXPECT_EQ(outcome_at(silent.front().get()), std::nullopt);
  EXPECT_TRUE(make_shm_connector(host.socket())->connect(kPatience).ok());
  with_memory(kMemory, kSeals)(silent.back().get());
  EXPECT_EQ(outcome_at(silent.back().get()), shm::HelloOutcome::kAccepted);
}

TEST(ShmHostile, ASilentProcessIsDroppedAfterTheTimeout) {
  ShmOptions options;
  options.handshake_timeout = std::chrono::milliseconds(10);
  const ShmHost host(options);
  const UniqueFd socket = connect_raw(host.socket());
  EXPECT_EQ(outcome_at(socket.get()), std::nullopt);
}

// -- acceptors that break the rules --------------------------------------------------------------

// Returns the error of a connector to a socket whose process does `action` with the connection.
Status error_of_connector(const std::function<void(int socket)>& action, Duration max_wait) {
  const test::TemporaryDirectory directory;
  auto listening = ListeningSocket::open(directory.path() / "socket");
  TIDEMILL_CHECK(listening.ok());
  std::thread acceptor([&] {
    ::fcntl(listening.value().get(), F_SETFL, 0);  // waits
    const UniqueFd socket(::accept(listening.value().get(), nullptr, nullptr));
    action(socket.get());
  });
  const Status status = make_shm_connector(directory.path() / "socket")->connect(max_wait).status();
  acceptor.join();
  const std::string location = (directory.path() / "socket: ").string();
  EXPECT_EQ(status.message().substr(0, location.size()), location);
  return {status.code(), status.message().substr(location.size())};
}

TEST(ShmHostile, AConnectorRefusesWhatIsNoAcceptor) {
  const auto sends = [](const shm::HelloReply& reply) {
    return [=](int socket) { send_packet(socket, std::as_bytes(std::span(&reply, 1))); };
  };
  struct Case {
    std::function<void(int)> action;
    std::string error;
  };
  shm::HelloReply magic;
  magic.magic[0] = 'x';
  shm::HelloReply version;
  version.version = 7;
  version.outcome = shm::HelloOutcome::kOtherVersion;
  shm::HelloReply resources;
  resources.outcome = shm::HelloOutcome::kNoResources;
  shm::HelloReply unknown;
  unknown.outcome = static_cast<shm::HelloOutcome>(99);
  const std::vector<Case> cases = {
      {[](int) {}, "unavailable: the acceptor has refused the connection"},
      {[](int socket) { send_packet(socket, std::as_bytes(std::span("short"))); },
       "unavailable: the process that listens there is no acceptor"},
      {sends(magic), "unavailable: the process that listens there is no acceptor"},
      {sends(version),
       "unimplemented: the acceptor has version 7 of the handshake, this program version 1"},
      {sends(resources),
       "resource_exhausted: the process of the acceptor lacks memory, descriptors or threads"},
      {sends(unknown), "unavailable: the acceptor has refused the shared memory"},
  };
  for (const Case& one : cases) {
    const auto action = [&](int socket) {
      std::byte hello{};
      // Closing a socket with unread bytes would reset the connection.
      TIDEMILL_CHECK(::recv(socket, &hello, sizeof(hello), 0) == 1);
      one.action(socket);
    };
    EXPECT_EQ(error_of_connector(action, kPatience).to_string(), one.error);
  }
  const auto waits_for_the_end = [](int socket) {
    std::byte byte{};
    while (::recv(socket, &byte, sizeof(byte), 0) > 0) {
    }
  };
  EXPECT_EQ(error_of_connector(waits_for_the_end, std::chrono::milliseconds(10)).to_string(),
            "unavailable: the acceptor did not reply in time");
}

// -- control words that change -------------------------------------------------------------------

// A connection whose other side is the test itself, with the memory in its hands.
struct HostileConnection {
  // Starts the connection with `other` instead of `listener` if it is not null.
  explicit HostileConnection(ConnectionListener* other = nullptr, const ShmOptions& options = {})
      : host(options) {
    TIDEMILL_CHECK(shm::send_hello(socket.get(), good_hello(), memory.descriptor()).ok());
    TIDEMILL_CHECK(outcome_at(socket.get()) == shm::HelloOutcome::kAccepted);
    connection = host.accepted();
    TIDEMILL_CHECK(connection != nullptr);
    connection->start(other != nullptr ? *other : listener);
  }
  static shm::SharedMemory make_memory() {
    auto made = shm::SharedMemory::create(kRing);
    TIDEMILL_CHECK(made.ok()) << made.status().to_string();
    return std::move(made).value();
  }

  shm::Control::Side& own() { return memory.control().sides[0]; }
  shm::Control::Side& other() { return memory.control().sides[1]; }
  void wake() { shm::wake_always(other().sleep); }
  // Puts bytes into the ring, as a writer that follows the rules.
  void write(std::span<const std::byte> bytes) {
    TIDEMILL_CHECK(wait_until([&] { return writer.room(bytes.size()) >= bytes.size(); }));
    writer.write(bytes);
    writer.publish();
    wake();
  }
  Status reason() {
    EXPECT_TRUE(wait_until([&] { return listener.closed() == 1; }));
    return listener.reason();
  }

  ShmHost host;
  shm::SharedMemory memory = make_memory();
  UniqueFd socket = connect_raw(host.socket());
  shm::RingWriter writer{own().counts, memory.ring(Role::kConnector)};
  RecordingListener listener;
  std::unique_ptr<Connection> connection;
};

constexpr const char* kImpossible =
    "corrupt_data: connection: the other process has written an impossible count";

TEST(ShmHostile, AFrameBeyondTheLimitClosesTheConnection) {
  HostileConnection hostile;
  const std::uint32_t length = 0xFFFFFFFF;
  hostile.write(std::as_bytes(std::span(&length, 1)));
  EXPECT_EQ(hostile.reason().to_string(),
            "corrupt_data: connection: the other process has sent a frame of 4294967295 bytes (at "
            "most 16777216)");
  EXPECT_TRUE(hostile.listener.frames().empty());
  EXPECT_EQ(hostile.connection->send(Buffer()).code(), Errc::kUnavailable);
  EXPECT_EQ(outcome_at(hostile.socket.get()), std::nullopt);  // the socket is closed too
}

TEST(ShmHostile, ImpossibleCountsOfTheWriterCloseTheConnection) {
  for (const std::uint64_t count : {std::uint64_t{kRing + 1}, ~std::uint64_t{0},
                                    std::uint64_t{1} << 63U, std::uint64_t{1} << 32U}) {
    HostileConnection hostile;
    hostile.own().counts.written = count;
    hostile.wake();
    EXPECT_EQ(hostile.reason().to_string(), kImpossible) << count;
  }
  HostileConnection hostile;
  const std::array<std::byte, 8> frames_without_bytes{};
  hostile.write(frames_without_bytes);
  ASSERT_TRUE(wait_until([&] { return hostile.listener.frames().size() == 2; }));
  hostile.own().counts.written = 4;  // goes back
  hostile.wake();
  EXPECT_EQ(hostile.reason().to_string(), kImpossible);
}

TEST(ShmHostile, ImpossibleCountsOfTheReaderCloseTheConnection) {
  // `send` looks at the count if it knows of too little room.
  for (const std::size_t room_left : {std::size_t{0}, std::size_t{100}}) {
    HostileConnection hostile;
    const Buffer filling = numbered_frame(1, kRing - room_left - 4);
    ASSERT_TRUE(hostile.connection->send(filling).ok());
    hostile.other().counts.read = kRing + 1;
    const Status status = hostile.connection->send(numbered_frame(2, 200));
    EXPECT_EQ(status.to_string(), "unavailable: connection: it is closed");
    EXPECT_EQ(hostile.reason().to_string(), kImpossible);
  }
  // The thread looks at it if frames wait for room.
  HostileConnection hostile;
  ASSERT_TRUE(hostile.connection->send(numbered_frame(1, 2 * kRing)).ok());
  wait_for_quiet();
  hostile.other().counts.read = kRing + 1;
  hostile.wake();
  EXPECT_EQ(hostile.reason().to_string(), kImpossible);
}

TEST(ShmHostile, AnAnnouncedFrameThatNeverArrivesEndsWithTheConnection) {
  HostileConnection hostile;
  const auto length = static_cast<std::uint32_t>(kMaxEnvelopeBytes);
  hostile.write(std::as_bytes(std::span(&length, 1)));
  wait_for_quiet();
  hostile.socket.reset();
  EXPECT_EQ(hostile.reason().code(), Errc::kUnavailable);
  EXPECT_TRUE(hostile.listener.frames().empty());
}

// Changes control words and bytes at random while frames flow both ways.
TEST(ShmHostile, ChangesAtRandomDoNotCrash) {
  std::size_t num_violations = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    RandomStream random(seed);
    HostileConnection hostile;
    const auto ring = hostile.memory.ring(Role::kConnector);
    const std::uint64_t num_changes = random.below(400);
    for (std::uint64_t i = 0; i < num_changes; ++i) {
      (void)hostile.connection->send(numbered_frame(i, 8 + random.below(300)));
      // Mostly possible values, so that the connection lives for a while.
      const std::uint64_t value = random.below(40) == 0 ? random.bits() : random.below(kRing);
      switch (random.below(6)) {
        case 0: hostile.own().counts.written = value; break;
        case 1: hostile.other().counts.read = value; break;
        case 2: hostile.other().sleep = static_cast<std::uint32_t>(random.below(5)); break;
        case 3: hostile.own().sleep = static_cast<std::uint32_t>(value); break;
        default: {
          const std::size_t at = random.below(kRing - 4);
          const auto length = static_cast<std::uint32_t>(random.below(200));
          std::memcpy(ring.data() + at, &length, sizeof(length));
        }
      }
      if (random.below(4) == 0) {
        hostile.wake();
      }
    }
    hostile.wake();
    hostile.socket.reset();
    const Status reason = hostile.reason();
    num_violations += reason.code() == Errc::kCorruptData ? 1 : 0;
    EXPECT_TRUE(reason.code() == Errc::kCorruptData || reason.code() == Errc::kUnavailable)
        << reason.to_string();
    for (const Buffer& frame : hostile.listener.frames()) {
      EXPECT_LE(frame.size_bytes(), kMaxEnvelopeBytes);
    }
  }
  EXPECT_GT(num_violations, 0U);
}

// The thread goes to sleep again and again, and the word always says that it sleeps. At the end,
// only this process wakes it.
TEST(ShmHostile, AProcessThatHoldsTheSleepWordDoesNotHinderTheEnd) {
  for (int i = 0; i < 200; ++i) {
    HostileConnection hostile(nullptr, {.spin = Duration::zero()});
    std::atomic<bool> ending = false;
    const std::jthread changer([&](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        if (!ending) {
          hostile.wake();
        }
        for (int j = 0; j < 1000; ++j) {
          hostile.other().sleep = shm::kSleeps;
        }
      }
    });
    ending = true;
    if (i % 2 == 0) {
      hostile.connection.reset();
    } else {
      hostile.socket.reset();
      EXPECT_EQ(hostile.reason().code(), Errc::kUnavailable);
    }
  }
}

// Fills the ring with empty frames during every call, as a process could that has kept the memory.
class RefillingListener final : public ConnectionListener {
public:
  void on_frame(const Buffer& /*frame*/) override {
    ++num_frames_;
    if (shm::RingCounts* const counts = counts_) {
      counts->written = counts->read + kRing;
    }
  }
  void on_closed(const Status& /*reason*/) override { closed_ = true; }

  void refill(shm::RingCounts& counts) { counts_ = &counts; }
  [[nodiscard]] std::size_t num_frames() const { return num_frames_; }
  [[nodiscard]] bool closed() const { return closed_; }

private:
  std::atomic<shm::RingCounts*> counts_ = nullptr;
  std::atomic<std::size_t> num_frames_ = 0;
  std::atomic<bool> closed_ = false;
};

TEST(ShmHostile, AWriterThatGoesOnAfterItsEndIsNotReadWithoutEnd) {
  RefillingListener listener;
  HostileConnection hostile(&listener);
  listener.refill(hostile.own().counts);
  hostile.own().counts.written = 4;
  hostile.wake();
  ASSERT_TRUE(wait_until([&] { return listener.num_frames() > 10'000; }));
  hostile.socket.reset();
  EXPECT_TRUE(wait_until([&] { return listener.closed(); }));
}

// -- lacks of resources --------------------------------------------------------------------------

TEST(ShmResources, AConnectorReportsALackOfDescriptors) {
  ShmHost host;
  const auto connector = make_shm_connector(host.socket());
  // It needs two for its first connection only, and then three for each.
  for (const rlim_t num_free : {0, 1, 2, 0, 1, 2}) {
    const SoftLimit limit(RLIMIT_NOFILE, next_descriptor() + num_free);
    const auto made = connector->connect(kPatience);
    ASSERT_FALSE(made.ok()) << num_free;
    EXPECT_EQ(made.status().code(), Errc::kResourceExhausted) << made.status().to_string();
  }
  EXPECT_TRUE(connector->connect(kPatience).ok());
  const SoftLimit limit(RLIMIT_NOFILE, next_descriptor());
  EXPECT_EQ(listen_shm(host.socket(), {}).status().code(), Errc::kResourceExhausted);
}

// Returns how often the other threads of this process have gone to sleep.
std::int64_t num_sleeps_of_others() {
  rusage all{};
  rusage own{};
  TIDEMILL_CHECK(::getrusage(RUSAGE_SELF, &all) == 0 && ::getrusage(RUSAGE_THREAD, &own) == 0);
  return all.ru_nvcsw - own.ru_nvcsw;
}

TEST(ShmResources, AnAcceptorOutlivesALackOfDescriptors) {
  std::mutex mutex;  // of `troubles`
  std::set<std::string> troubles;
  ShmOptions options;
  options.on_trouble = [&](const Status& why) {
    const std::lock_guard lock(mutex);
    troubles.insert(why.to_string());
  };
  ShmHost host(options);
  const UniqueFd memory = memory_file(kMemory, kSeals);
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET, 0));
  const auto path = SocketPath::open(host.socket());
  ASSERT_TRUE(path.ok());
  wait_for_quiet();
  {
    const SoftLimit limit(RLIMIT_NOFILE, next_descriptor());
    const auto* address = reinterpret_cast<const sockaddr*>(&path.value().address());
    const std::int64_t before = num_sleeps_of_others();
    ASSERT_EQ(::connect(socket.get(), address, sizeof(sockaddr_un)), 0);
    ASSERT_TRUE(shm::send_hello(socket.get(), good_hello(), memory.get()).ok());
    // The acceptor has tried and sleeps again.
    EXPECT_TRUE(wait_until([&] { return num_sleeps_of_others() > before; }));
    EXPECT_EQ(host.num_accepted(), 0U);
  }
  EXPECT_EQ(outcome_at(socket.get()), shm::HelloOutcome::kAccepted);
  const std::lock_guard lock(mutex);
  EXPECT_EQ(troubles, std::set<std::string>{"resource_exhausted: cannot accept a connection: Too "
                                            "many open files"});
}

// The last descriptor is that of the connection, so that none is left for its memory.
TEST(ShmResources, AnAcceptorSaysThatItHasNoDescriptorForTheMemory) {
  std::promise<std::string> trouble;
  std::atomic<bool> first = true;
  ShmOptions options;
  options.on_trouble = [&](const Status& why) {
    if (first.exchange(false)) {
      trouble.set_value(why.to_string());
    }
  };
  ShmHost host(options);
  const UniqueFd memory = memory_file(kMemory, kSeals);
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET, 0));
  const auto path = SocketPath::open(host.socket());
  ASSERT_TRUE(path.ok());
  wait_for_quiet();
  const SoftLimit limit(RLIMIT_NOFILE, next_descriptor() + 1);
  const auto* address = reinterpret_cast<const sockaddr*>(&path.value().address());
  ASSERT_EQ(::connect(socket.get(), address, sizeof(sockaddr_un)), 0);
  ASSERT_TRUE(shm::send_hello(socket.get(), good_hello(), memory.get()).ok());
  auto said = trouble.get_future();
  ASSERT_EQ(said.wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(said.get(), "resource_exhausted: no descriptor is left for a connection");
}

TEST(ShmResources, ALackOfMemoryIsAnError) {
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  {
    const SoftLimit limit(RLIMIT_FSIZE, 4096);
    const auto made = shm::SharedMemory::create(kRing);
    EXPECT_EQ(made.status().code(), Errc::kResourceExhausted) << made.status().to_string();
  }
  (void)std::signal(SIGXFSZ, before);
  EXPECT_TRUE(shm::SharedMemory::create(kRing).ok());
}

}  // namespace
}  // namespace tidemill::transport
