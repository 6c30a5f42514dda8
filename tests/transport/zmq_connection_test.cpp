// SPDX-License-Identifier: Apache-2.0
#include "transport/zmq/zmq_connection.hpp"

#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "base/files/unique_fd.hpp"
#include "tests/transport/connection_suite.hpp"
#include "tests/transport/zmq_endpoint_fixture.hpp"
#include "transport/zmq/zmq_side.hpp"

namespace tidemill::transport {
namespace {

// -- the conformance suite -----------------------------------------------------------------------

// What has happened at one side of a connection.
struct SideCounts {
  std::atomic<std::size_t> sent = 0;
  std::atomic<std::size_t> arrived = 0;
  std::atomic<bool> started = false;
  std::atomic<bool> ending = false;  // was asked to close, or is destroyed
  std::atomic<bool> destroyed = false;
  std::atomic<bool> closed = false;
};

// Counts what a side sends and what its listener gets.
class CountedConnection final : public Connection, private ConnectionListener {
public:
  CountedConnection(std::unique_ptr<Connection> connection, std::shared_ptr<SideCounts> counts)
      : counts_(std::move(counts)), connection_(std::move(connection)) {}
  ~CountedConnection() override { counts_->ending = true; }

  void start(ConnectionListener& listener) override {
    listener_ = &listener;
    counts_->started = true;
    connection_->start(*this);
  }
  Status send(const Buffer& frame) override {
    Status status = connection_->send(frame);
    counts_->sent += status.ok() ? 1 : 0;
    return status;
  }
  void close() override {
    counts_->ending = true;
    connection_->close();
  }

private:
  void on_frame(const Buffer& frame) override {
    listener_->on_frame(frame);
    ++counts_->arrived;
  }
  void on_closed(const Status& reason) override {
    listener_->on_closed(reason);
    counts_->closed = true;
  }

  // Counts the end of the connection, after a call of the listener in progress.
  struct End {
    std::shared_ptr<SideCounts> counts;
    ~End() { counts->destroyed = true; }
  };

  const std::shared_ptr<SideCounts> counts_;
  ConnectionListener* listener_ = nullptr;
  const End end_{counts_};
  const std::unique_ptr<Connection> connection_;
};

enum class First { kConnected, kAccepted };

class ZmqRig final : public ConnectionRig {
public:
  explicit ZmqRig(First first) : first_(first) {}

  Pair connect() override {
    auto [connected, accepted] = endpoint_.connect();
    if (first_ == First::kAccepted) {
      std::swap(connected, accepted);
    }
    pairs_.push_back({std::make_shared<SideCounts>(), std::make_shared<SideCounts>()});
    return {std::make_unique<CountedConnection>(std::move(connected), pairs_.back()[0]),
            std::make_unique<CountedConnection>(std::move(accepted), pairs_.back()[1])};
  }
  bool run_until(const std::function<bool()>& done) override { return eventually(done); }
  void settle() override {
    for (const auto& sides : pairs_) {
      EXPECT_TRUE(eventually(
          [&] { return settled(*sides[0], *sides[1]) && settled(*sides[1], *sides[0]); }));
    }
    // For a side that was not started, and for a call too many: something that takes longer than
    // what may still be on the way.
    ZmqConversation other(endpoint_.connect());
    EXPECT_TRUE(other.round_trip());
  }

private:
  // Returns whether everything has arrived at a side, as far as its listener shows.
  static bool settled(const SideCounts& side, const SideCounts& other) {
    if (!side.started || side.destroyed || side.closed) {
      return true;
    }
    const bool ends = side.ending || other.ending || other.closed;
    return !ends && side.arrived == other.sent;
  }

  const First first_;
  ZmqEndpoint endpoint_;
  std::vector<std::array<std::shared_ptr<SideCounts>, 2>> pairs_;
};

INSTANTIATE_TEST_SUITE_P(ZmqFromConnected, ConnectionSuite, ::testing::Values([] {
                           return std::make_unique<ZmqRig>(First::kConnected);
                         }));
INSTANTIATE_TEST_SUITE_P(ZmqFromAccepted, ConnectionSuite, ::testing::Values([] {
                           return std::make_unique<ZmqRig>(First::kAccepted);
                         }));

// -- endpoints -----------------------------------------------------------------------------------

TEST(ZmqEndpoints, InvalidOnesAreRefused) {
  const std::string long_name(81, 'n');
  const std::vector<std::pair<std::string, std::string>> rows = {
      {"", ": an endpoint is ipc:// and a path"},
      {"tcp://127.0.0.1:5555", "tcp://127.0.0.1:5555: an endpoint is ipc:// and a path"},
      {"ipc://", "ipc://: an endpoint needs an absolute path of a file"},
      {"ipc://socket", "ipc://socket: an endpoint needs an absolute path of a file"},
      {"ipc://*", "ipc://*: an endpoint needs an absolute path of a file"},
      {"ipc://@name", "ipc://@name: an endpoint needs an absolute path of a file"},
      {"ipc:///tmp/", "ipc:///tmp/: an endpoint needs an absolute path of a file"},
      {"ipc:///tmp/..", "ipc:///tmp/..: an endpoint needs an absolute path of a file"},
      {"ipc:///tmp/" + long_name,
       "ipc:///tmp/" + long_name + ": the file name is too long (at most 80 bytes)"},
  };
  for (const auto& [endpoint, message] : rows) {
    const auto acceptor = listen_zmq(endpoint, [](auto) {});
    ASSERT_FALSE(acceptor.ok()) << endpoint;
    EXPECT_EQ(acceptor.status().to_string(), "invalid_argument: " + message);
    EXPECT_EQ(new_zmq_connector(endpoint).status().to_string(), "invalid_argument: " + message);
  }
}

TEST(ZmqEndpoints, OnlyTheUserCanConnectAndTheFileIsRemoved) {
  ZmqEndpoint endpoint;
  struct stat found {};
  ASSERT_EQ(::stat(endpoint.path().c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 07777U, 0600U);
  EXPECT_TRUE(S_ISSOCK(found.st_mode));
  endpoint.stop_listening();
  EXPECT_FALSE(std::filesystem::exists(endpoint.path()));
}

TEST(ZmqEndpoints, AnotherFileOrProcessIsNotReplaced) {
  ZmqEndpoint endpoint;
  const auto second = listen_zmq(endpoint.address(), [](auto) {});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().to_string(),
            "unavailable: " + endpoint.path() + ": another process listens there");
  EXPECT_TRUE(ZmqConversation(endpoint.connect()).round_trip());

  endpoint.stop_listening();
  std::ofstream(endpoint.path()) << "text";
  const auto over_file = listen_zmq(endpoint.address(), [](auto) {});
  ASSERT_FALSE(over_file.ok());
  EXPECT_EQ(over_file.status().to_string(),
            "invalid_argument: " + endpoint.path() + ": is not a socket; choose another path");
  EXPECT_EQ(std::filesystem::file_size(endpoint.path()), 4U);
}

// Returns a socket that listens at `path` and accepts nothing.
UniqueFd deaf_listener(const std::string& path) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_un address = socket_address_of(path);
  EXPECT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(::listen(socket.get(), 16), 0);
  return socket;
}

TEST(ZmqEndpoints, ASocketThatAProcessHasLeftIsReplaced) {
  ZmqEndpoint endpoint;
  endpoint.stop_listening();
  deaf_listener(endpoint.path()).reset();
  ASSERT_TRUE(std::filesystem::exists(endpoint.path()));
  endpoint.listen();
  EXPECT_TRUE(ZmqConversation(endpoint.connect()).round_trip());
}

TEST(ZmqEndpoints, ConnectingFailsIfNothingListens) {
  ZmqEndpoint endpoint;
  endpoint.stop_listening();
  const std::string refused =
      "unavailable: " + endpoint.address() + ": no process accepts connections there";
  EXPECT_EQ(endpoint.try_connect().status().to_string(), refused);
  deaf_listener(endpoint.path()).reset();
  EXPECT_EQ(endpoint.try_connect().status().to_string(), refused);
  const auto no_folder =
      new_zmq_connector(endpoint.address() + "/folder/socket").value()->connect(kLongTime);
  EXPECT_EQ(no_folder.status().code(), Errc::kUnavailable);
  const auto no_folder_to_listen =
      listen_zmq("ipc://" + endpoint.path() + "-folder/socket", [](auto) {});
  EXPECT_EQ(no_folder_to_listen.status().code(), Errc::kNotFound);
}

TEST(ZmqEndpoints, ConnectingFailsIfNothingAcceptsInTime) {
  ZmqEndpoint endpoint;
  endpoint.stop_listening();
  const UniqueFd deaf = deaf_listener(endpoint.path());
  const auto connector = new_zmq_connector(endpoint.address()).value();
  for (const int wait_ms : {-1, 0, 50}) {
    const auto connection = connector->connect(std::chrono::milliseconds(wait_ms));
    EXPECT_EQ(
        connection.status().to_string(),
        "unavailable: " + endpoint.address() + ": the listening process has not accepted in time");
  }
}

TEST(ZmqEndpoints, APathMayBeLong) {
  const test::TemporaryDirectory folder;
  const std::filesystem::path deep = folder.path() / std::string(100, 'a') / std::string(100, 'b');
  std::filesystem::create_directories(deep);
  const std::string path = (deep / std::string(80, 'c')).string();
  CountingListener listener;  // outlives the connection
  std::unique_ptr<Connection> accepted;
  std::atomic<bool> ready = false;
  auto acceptor = listen_zmq("ipc://" + path, [&](std::unique_ptr<Connection> connection) {
                    accepted = std::move(connection);
                    accepted->start(listener);
                    ready = true;
                  }).value();
  const auto connector = new_zmq_connector("ipc://" + path).value();
  const auto connection = connector->connect(kLongTime).value();
  ASSERT_TRUE(eventually([&] { return ready.load(); }));
  ASSERT_TRUE(connection->send(zmq_frame(1, 10)).ok());
  EXPECT_TRUE(eventually([&] { return listener.frames() == 1; }));
  acceptor.reset();
  EXPECT_FALSE(std::filesystem::exists(path));
}

// -- life ----------------------------------------------------------------------------------------

TEST(ZmqConnections, OutliveTheirAcceptorAndConnector) {
  ZmqEndpoint endpoint;
  ZmqConversation first(endpoint.connect());
  endpoint.stop_listening();
  EXPECT_TRUE(first.round_trip());
  EXPECT_EQ(endpoint.try_connect().status().code(), Errc::kUnavailable);

  endpoint.listen();  // a second acceptor, while connections of the first one are open
  ZmqConversation second(endpoint.connect());
  EXPECT_TRUE(second.round_trip());
  first.connected.reset();
  first.accepted.reset();
  EXPECT_TRUE(std::filesystem::exists(endpoint.path()));
  EXPECT_TRUE(ZmqConversation(endpoint.connect()).round_trip());
  EXPECT_TRUE(second.round_trip());

  auto connector = new_zmq_connector(endpoint.address()).value();
  auto connected = connector->connect(kLongTime).value();
  connector.reset();
  EXPECT_TRUE(ZmqConversation({std::move(connected), endpoint.accepted()}).round_trip());
}

TEST(ZmqConnections, WithoutOnAcceptAreClosedByTheEndOfTheAcceptor) {
  ZmqEndpoint endpoint;
  std::mutex mutex;
  std::unique_lock hold(mutex);
  const std::string address = endpoint.address() + "-2";
  std::atomic<int> calls = 0;
  auto acceptor = listen_zmq(address, [&](std::unique_ptr<Connection> /*dropped*/) {
                    ++calls;
                    const std::lock_guard wait(mutex);
                  }).value();
  const auto connector = new_zmq_connector(address).value();
  CountingListener at_first;
  CountingListener at_second;
  const auto first = connector->connect(kLongTime).value();
  ASSERT_TRUE(eventually([&] { return calls == 1; }));
  const auto second = connector->connect(kLongTime).value();
  first->start(at_first);
  second->start(at_second);
  std::thread end([&] { acceptor.reset(); });
  EXPECT_TRUE(eventually([&] { return !at_second.reason().ok(); }));  // while a call is in progress
  EXPECT_TRUE(at_first.reason().ok());
  hold.unlock();
  end.join();
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(eventually([&] { return !at_first.reason().ok(); }));
}

TEST(ZmqConnections, DestroyingWaitsForACallInProgress) {
  ZmqEndpoint endpoint;
  for (const bool accepted : {false, true}) {
    ZmqConversation talk(endpoint.connect());
    std::unique_ptr<Connection>& other = accepted ? talk.connected : talk.accepted;
    std::unique_ptr<Connection>& side = accepted ? talk.accepted : talk.connected;
    CountingListener& listener = accepted ? talk.at_accepted : talk.at_connected;
    listener.hold();
    for (int i = 0; i < 10; ++i) {
      ASSERT_TRUE(other->send(zmq_frame(1, 10)).ok());
    }
    std::atomic<bool> destroyed = false;
    std::thread destroying([&] {
      side.reset();
      destroyed = true;
    });
    // The other side learns of it before, because the call does not delay the end.
    CountingListener& at_other = accepted ? talk.at_connected : talk.at_accepted;
    EXPECT_TRUE(eventually([&] { return !at_other.reason().ok(); }));
    const bool waited = !destroyed;
    listener.release();
    destroying.join();
    EXPECT_LE(listener.frames(), 1U);
    EXPECT_TRUE(waited || listener.frames() == 0);  // no call was in progress
    EXPECT_TRUE(listener.reason().ok());
  }
}

// A program that returns frames in another process.
class PeerProcess {
public:
  PeerProcess(const std::string& role, const std::string& endpoint) {
    const std::string command = "exec " TIDEMILL_ZMQ_PEER " " + role + " '" + endpoint + "'";
    output_ = ::popen(command.c_str(), "re");
    EXPECT_EQ(std::fscanf(output_, "%d", &pid_), 1);
  }
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;
  ~PeerProcess() { kill(); }

  void kill() {
    if (output_ != nullptr) {
      ::kill(pid_, SIGKILL);
      ::pclose(output_);
      output_ = nullptr;
    }
  }

private:
  std::FILE* output_ = nullptr;
  pid_t pid_ = -1;
};

TEST(ZmqConnections, AKilledListeningProcessIsNoticed) {
  ZmqEndpoint endpoint;
  endpoint.stop_listening();
  PeerProcess peer("listen", endpoint.address());
  CountingListener listener;
  const auto connection = endpoint.try_connect().value();
  connection->start(listener);
  for (std::size_t i = 0; i < 100; ++i) {
    ASSERT_TRUE(connection->send(zmq_frame(i, i * 1000)).ok());
  }
  ASSERT_TRUE(eventually([&] { return listener.frames() == 100; }));
  EXPECT_TRUE(equal(listener.last(), zmq_frame(99, 99'000)));
  peer.kill();
  ASSERT_TRUE(eventually([&] { return !listener.reason().ok(); }));
  EXPECT_EQ(listener.reason().to_string(), "unavailable: the connection has broken");
  EXPECT_EQ(connection->send(zmq_frame(1, 1)).to_string(), "unavailable: connection: it is closed");
  // A new process takes the place of the killed one.
  PeerProcess next("listen", endpoint.address());
  EXPECT_TRUE(endpoint.try_connect().ok());
}

TEST(ZmqConnections, AKilledConnectingProcessIsNoticed) {
  ZmqEndpoint endpoint;
  ZmqConversation other(endpoint.connect());
  PeerProcess peer("connect", endpoint.address());
  CountingListener listener;
  const auto connection = endpoint.accepted();
  connection->start(listener);
  for (std::size_t i = 0; i < 100; ++i) {
    ASSERT_TRUE(connection->send(zmq_frame(i, i * 1000)).ok());
  }
  ASSERT_TRUE(eventually([&] { return listener.frames() == 100; }));
  peer.kill();
  ASSERT_TRUE(eventually([&] { return !listener.reason().ok(); }));
  EXPECT_EQ(listener.reason().to_string(), "unavailable: the connection has broken");
  EXPECT_TRUE(other.round_trip());
}

TEST(ZmqConnections, AreOfTheirOwnProcessEachTime) {
  ZmqEndpoint endpoint;
  for (int i = 0; i < 20; ++i) {  // descriptors are used again
    PeerProcess peer("connect", endpoint.address());
    CountingListener listener;
    const auto connection = endpoint.accepted();
    connection->start(listener);
    ASSERT_TRUE(connection->send(zmq_frame(1, 10)).ok());
    ASSERT_TRUE(eventually([&] { return listener.frames() == 1; }));
    peer.kill();
    ASSERT_TRUE(eventually([&] { return !listener.reason().ok(); }));
  }
}

// -- load ----------------------------------------------------------------------------------------

TEST(ZmqConnections, CarryLargeFramesBothWaysAtOnce) {
  ZmqEndpoint endpoint;
  ZmqConversation talk(endpoint.connect());
  constexpr std::size_t kCount = 8;
  const Buffer to_accepted = zmq_frame(1, kMaxEnvelopeBytes);
  const Buffer to_connected = zmq_frame(2, kMaxEnvelopeBytes);
  for (std::size_t i = 0; i < kCount; ++i) {
    ASSERT_TRUE(talk.connected->send(to_accepted).ok());
    ASSERT_TRUE(talk.accepted->send(to_connected).ok());
  }
  ASSERT_TRUE(eventually(
      [&] { return talk.at_accepted.frames() == kCount && talk.at_connected.frames() == kCount; }));
  EXPECT_TRUE(equal(talk.at_accepted.last(), to_accepted));
  EXPECT_TRUE(equal(talk.at_connected.last(), to_connected));
}

// Checks that frames arrive in order and aligned.
class OrderListener final : public ConnectionListener {
public:
  void on_frame(const Buffer& frame) override {
    const std::size_t i = next_++;
    wrong_ += equal(frame, zmq_frame(i, i % 50)) ? 0 : 1;
    wrong_ += reinterpret_cast<std::uintptr_t>(frame.bytes().data()) % 8 == 0 ? 0 : 1;
  }
  void on_closed(const Status& /*reason*/) override {}

  [[nodiscard]] std::size_t count() const { return next_; }
  [[nodiscard]] std::size_t wrong() const { return wrong_; }

private:
  std::atomic<std::size_t> next_ = 0;
  std::atomic<std::size_t> wrong_ = 0;
};

TEST(ZmqConnections, CarryManySmallFrames) {
  ZmqEndpoint endpoint;
  OrderListener at_connected;
  OrderListener at_accepted;
  auto [connected, accepted] = endpoint.connect();
  connected->start(at_connected);
  accepted->start(at_accepted);
  constexpr std::size_t kCount = 100'000;
  for (std::size_t i = 0; i < kCount; ++i) {
    ASSERT_TRUE(connected->send(zmq_frame(i, i % 50)).ok());
    ASSERT_TRUE(accepted->send(zmq_frame(i, i % 50)).ok());
  }
  ASSERT_TRUE(
      eventually([&] { return at_accepted.count() == kCount && at_connected.count() == kCount; }));
  EXPECT_EQ(at_accepted.wrong(), 0U);
  EXPECT_EQ(at_connected.wrong(), 0U);
}

// Sends each frame back.
class EchoListener final : public ConnectionListener {
public:
  void set_connection(Connection& connection) { connection_ = &connection; }
  void on_frame(const Buffer& frame) override { EXPECT_TRUE(connection_->send(frame).ok()); }
  void on_closed(const Status& /*reason*/) override {}

private:
  Connection* connection_ = nullptr;
};

// Counts frames by their first byte.
class SortingListener final : public ConnectionListener {
public:
  explicit SortingListener(std::size_t kinds) : counts_(kinds, 0) {}
  void on_frame(const Buffer& frame) override {
    const std::lock_guard lock(mutex_);
    ++counts_.at(static_cast<std::size_t>(frame.bytes()[0]));
    changed_.notify_all();
  }
  void on_closed(const Status& /*reason*/) override {}

  // Waits for so many frames of a kind. Returns false if that takes too long.
  bool wait_for(std::size_t kind, std::size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kLongTime, [&] { return counts_.at(kind) >= count; });
  }

private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::size_t> counts_;
};

// Each thread waits for the reply to its frame before it sends the next one, so a frame that stays
// in a queue until something else arrives stops the threads.
TEST(ZmqConnections, AFrameNeedsNoOtherToArrive) {
  ZmqEndpoint endpoint;
  constexpr std::size_t kThreads = 4;
  constexpr std::size_t kConnections = 2;
  constexpr std::size_t kRoundTrips = 2'000;
  struct Talk {
    SortingListener at_sender{kThreads};
    EchoListener at_echo;
    std::unique_ptr<Connection> sender;
    std::unique_ptr<Connection> echo;
  };
  for (const bool from_accepted : {false, true}) {
    std::array<Talk, kConnections> talks;
    std::vector<std::thread> threads;
    for (Talk& talk : talks) {
      std::tie(talk.sender, talk.echo) = endpoint.connect();
      if (from_accepted) {
        std::swap(talk.sender, talk.echo);
      }
      talk.at_echo.set_connection(*talk.echo);
      talk.sender->start(talk.at_sender);
      talk.echo->start(talk.at_echo);
      for (std::size_t kind = 0; kind < kThreads; ++kind) {
        threads.emplace_back([&talk, kind] {
          const Buffer frame =
              Buffer::adopt(std::vector<std::uint8_t>{static_cast<std::uint8_t>(kind)}, DType::kU8);
          for (std::size_t i = 0; i < kRoundTrips; ++i) {
            ASSERT_TRUE(talk.sender->send(frame).ok());
            ASSERT_TRUE(talk.at_sender.wait_for(kind, i + 1)) << i;
          }
        });
      }
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }
}

TEST(ZmqConnections, FramesOfAnySizeAreAligned) {
  ZmqEndpoint endpoint;
  ZmqConversation talk(endpoint.connect());
  const std::vector<std::size_t> sizes = {0,    1,    7,    33,   1023,    1024,
                                          8100, 8191, 8192, 8193, 100'001, 1'000'003};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const Buffer frame = zmq_frame(i, sizes[i]);
    ASSERT_TRUE(talk.connected->send(frame).ok());
    ASSERT_TRUE(eventually([&] { return talk.at_accepted.frames() == i + 1; }));
    const Buffer got = talk.at_accepted.last();
    EXPECT_TRUE(equal(got, frame)) << sizes[i];
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(got.bytes().data()) % 8, 0U) << sizes[i];
  }
}

// Much more than may be in flight waits in the sender, and no other connection waits for it.
TEST(ZmqConnections, ASlowListenerLosesNothingAndDelaysNoOther) {
  ZmqEndpoint endpoint;
  constexpr std::size_t kCount = 10'000;
  constexpr std::size_t kSize = 10 << 10;
  static_assert(kCount * kSize > 2 * kMaxInFlightBytes);
  ZmqConversation slow(endpoint.connect());
  ZmqConversation other(endpoint.connect());
  slow.at_accepted.hold();
  slow.at_connected.hold();
  for (std::size_t i = 0; i < kCount; ++i) {
    ASSERT_TRUE(slow.connected->send(zmq_frame(i, kSize)).ok());
    ASSERT_TRUE(slow.accepted->send(zmq_frame(i, kSize)).ok());
  }
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(other.round_trip());
  }
  EXPECT_EQ(slow.at_accepted.frames(), 0U);
  slow.at_accepted.release();
  ASSERT_TRUE(eventually([&] { return slow.at_accepted.frames() == kCount; }));
  EXPECT_TRUE(equal(slow.at_accepted.last(), zmq_frame(kCount - 1, kSize)));
  EXPECT_EQ(slow.at_connected.frames(), 0U);
  slow.at_connected.release();
  ASSERT_TRUE(eventually([&] { return slow.at_connected.frames() == kCount; }));
  EXPECT_TRUE(slow.at_connected.reason().ok());
}

TEST(ZmqConnections, AreLimitedInNumber) {
  ZmqEndpoint endpoint;
  CountingListener listener;
  std::vector<ZmqEndpoint::Pair> pairs;
  for (std::size_t i = 0; i < kMaxZmqConnections; ++i) {
    pairs.push_back(endpoint.connect());
  }
  EXPECT_EQ(
      endpoint.try_connect().status().to_string(),
      "unavailable: " + endpoint.address() + ": the listening process takes no more connections");
  pairs.back().second->start(listener);
  pairs.back().first.reset();
  ASSERT_TRUE(eventually([&] { return !listener.reason().ok(); }));
  EXPECT_FALSE(endpoint.try_connect().ok());  // the accepting side is not destroyed
  pairs.back().second.reset();
  EXPECT_TRUE(eventually([&] { return endpoint.try_connect().ok(); }));
}

}  // namespace
}  // namespace tidemill::transport
