// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/shm_connection.hpp"

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <fstream>
#include <functional>
#include <optional>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "base/files/unique_fd.hpp"
#include "tests/transport/connection_suite.hpp"
#include "tests/transport/shm_host.hpp"

namespace tidemill::transport {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20U;

// Makes connections inside this process.
class ShmRig final : public ConnectionRig {
public:
  explicit ShmRig(const ShmOptions& options = {})
      : host_(options), connector_(make_shm_connector(host_.socket(), options)) {}

  Pair connect() override {
    auto first = connector_->connect(kPatience);
    TIDEMILL_CHECK(first.ok()) << first.status().to_string();
    std::unique_ptr<Connection> second = host_.accepted();
    TIDEMILL_CHECK(second != nullptr);
    return {std::move(first).value(), std::move(second)};
  }
  bool run_until(const std::function<bool()>& done) override { return wait_until(done); }
  void settle() override { wait_for_quiet(); }

private:
  ShmHost host_;
  std::unique_ptr<Connector> connector_;
};

INSTANTIATE_TEST_SUITE_P(Shm, ConnectionSuite,
                         ::testing::Values([] { return std::make_unique<ShmRig>(); }));
// Every large frame passes in many pieces, and the ring wraps around often.
INSTANTIATE_TEST_SUITE_P(ShmTinyRing, ConnectionSuite, ::testing::Values([] {
                           return std::make_unique<ShmRig>(ShmOptions{.ring_bytes = 4096});
                         }));
INSTANTIATE_TEST_SUITE_P(ShmWithoutSpin, ConnectionSuite, ::testing::Values([] {
                           return std::make_unique<ShmRig>(
                               ShmOptions{.ring_bytes = 4096, .spin = Duration::zero()});
                         }));

// -- load ----------------------------------------------------------------------------------------

// Expects the frames of several senders, each of which numbers its frames from 0 on.
class OrderListener final : public ConnectionListener {
public:
  explicit OrderListener(std::size_t num_senders) : next_(num_senders) {}

  void on_frame(const Buffer& frame) override {
    const std::uint64_t number = number_of(frame);
    std::uint64_t& next = next_.at(number >> 32U);
    EXPECT_EQ(number & 0xFFFFFFFFU, next);
    ++next;
    ++count_;
  }
  void on_closed(const Status& /*reason*/) override { closed_ = true; }

  [[nodiscard]] std::size_t count() const { return count_; }
  [[nodiscard]] bool closed() const { return closed_; }

private:
  std::vector<std::uint64_t> next_;
  std::atomic<std::size_t> count_ = 0;
  std::atomic<bool> closed_ = false;
};

void send_numbered(Connection& side, std::uint64_t sender, std::size_t count, std::size_t size) {
  for (std::size_t i = 0; i < count; ++i) {
    EXPECT_TRUE(side.send(numbered_frame(sender << 32U | i, size)).ok());
  }
}

struct LoadCase {
  const char* name;
  ShmOptions options;
  std::size_t num_senders;  // threads on each side
  std::size_t num_frames;   // of each sender
  std::size_t frame_bytes;
};

class ShmLoad : public ::testing::TestWithParam<LoadCase> {};

TEST_P(ShmLoad, KeepsTheOrderOfEverySenderBothWaysAtOnce) {
  const LoadCase& load = GetParam();
  ShmRig rig(load.options);
  OrderListener at_a(load.num_senders);
  OrderListener at_b(load.num_senders);
  const auto [a, b] = rig.connect();
  a->start(at_a);
  b->start(at_b);
  std::vector<std::thread> senders;
  for (std::size_t i = 0; i < load.num_senders; ++i) {
    for (Connection* const side : {a.get(), b.get()}) {
      senders.emplace_back(
          [&load, i, side] { send_numbered(*side, i, load.num_frames, load.frame_bytes); });
    }
  }
  for (std::thread& sender : senders) {
    sender.join();
  }
  const std::size_t total = load.num_senders * load.num_frames;
  EXPECT_TRUE(rig.run_until([&] { return at_a.count() == total && at_b.count() == total; }))
      << at_a.count() << " and " << at_b.count() << " of " << total;
}

INSTANTIATE_TEST_SUITE_P(
    Cases, ShmLoad,
    ::testing::Values(
        LoadCase{"small", {}, 2, 50'000, 64},
        LoadCase{"small_in_tiny_ring", {.ring_bytes = 4096}, 2, 10'000, 64},
        LoadCase{"without_spin", {.ring_bytes = 4096, .spin = Duration::zero()}, 2, 10'000, 200},
        LoadCase{"larger_than_the_ring", {.ring_bytes = kMiB / 16}, 1, 12, 3 * kMiB},
        LoadCase{"large", {}, 2, 8, 4 * kMiB + 13}),
    [](const auto& test) { return std::string(test.param.name); });

// Each frame waits for the one before, so one lost wake-up would end it.
TEST(ShmConnection, NoWakeUpIsLost) {
  constexpr std::uint64_t kRounds = 20'000;
  for (const Duration spin : {Duration(0), Duration(1)}) {
    ShmRig rig({.spin = spin});
    std::atomic<std::uint64_t> num_rounds = 0;
    RecordingListener at_a;
    RecordingListener at_b;
    const auto [first, second] = rig.connect();
    Connection& a = *first;
    Connection& b = *second;
    at_a.set_on_frame([&](const Buffer& frame) {
      if (++num_rounds < kRounds) {
        EXPECT_TRUE(a.send(frame).ok());
      }
    });
    at_b.set_on_frame([&](const Buffer& frame) { EXPECT_TRUE(b.send(frame).ok()); });
    a.start(at_a);
    b.start(at_b);
    ASSERT_TRUE(a.send(numbered_frame(1, 8)).ok());
    EXPECT_TRUE(rig.run_until([&] { return num_rounds == kRounds; })) << num_rounds;
  }
}

TEST(ShmConnection, FramesWithoutRoomWaitForTheStart) {
  ShmRig rig;
  OrderListener at_a(1);
  OrderListener at_b(1);
  const auto [a, b] = rig.connect();
  send_numbered(*a, 0, 20, kMiB);  // a is not started either
  rig.settle();
  b->start(at_b);
  EXPECT_TRUE(rig.run_until([&] { return at_b.count() == 20; }));
}

TEST(ShmConnection, FramesInTheRingArriveAfterTheOtherSideHasClosed) {
  ShmRig rig;
  OrderListener at_b(1);
  auto [a, b] = rig.connect();
  send_numbered(*a, 0, 3, 100);
  a.reset();
  rig.settle();
  EXPECT_EQ(b->send(Buffer()).to_string(), "unavailable: connection: it is closed");
  b->start(at_b);
  EXPECT_TRUE(rig.run_until([&] { return at_b.closed(); }));
  EXPECT_EQ(at_b.count(), 3U);
}

TEST(ShmConnection, ConnectionsOutliveTheirAcceptorAndConnector) {
  RecordingListener at_a;
  RecordingListener at_b;
  std::optional<ShmRig> rig(std::in_place);
  const auto [a, b] = rig->connect();
  rig.reset();
  a->start(at_a);
  b->start(at_b);
  EXPECT_TRUE(b->send(numbered_frame(5, 8)).ok());
  EXPECT_TRUE(wait_until([&] { return at_a.frames().size() == 1; }));
  a->close();
  EXPECT_TRUE(wait_until([&] { return at_b.closed() == 1; }));
}

TEST(ShmConnection, AFrameIsAlignedForItsReader) {
  ShmRig rig;
  RecordingListener at_b;
  const auto [a, b] = rig.connect();
  b->start(at_b);
  for (std::size_t size : {9, 10, 11, 200'001}) {
    ASSERT_TRUE(a->send(numbered_frame(size, size)).ok());
  }
  ASSERT_TRUE(rig.run_until([&] { return at_b.frames().size() == 4; }));
  for (const Buffer& frame : at_b.frames()) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(frame.bytes().data()) % 8, 0U);
    EXPECT_EQ(number_of(frame), frame.size_bytes());
  }
}

// -- the socket ----------------------------------------------------------------------------------

Acceptor::OnAccept drop_connection() {
  return [](std::unique_ptr<Connection> /*connection*/) {};
}

TEST(ShmSocket, OnlyThisUserCanOpenItAndItIsRemoved) {
  const test::TemporaryDirectory directory;
  const auto path = directory.path() / "socket";
  const mode_t before = ::umask(0);
  auto acceptor = listen_shm(path, drop_connection());
  ::umask(before);
  ASSERT_TRUE(acceptor.ok()) << acceptor.status().to_string();
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode, static_cast<mode_t>(S_IFSOCK | 0600));
  EXPECT_TRUE(make_shm_connector(path)->connect(kPatience).ok());
  acceptor.value().reset();
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_EQ(make_shm_connector(path)->connect(kPatience).status().to_string(),
            "unavailable: " + path.string() + ": no process listens there");
}

TEST(ShmSocket, ItsPathMayBeLong) {
  const test::TemporaryDirectory directory;
  const auto deep = directory.path() / std::string(100, 'a') / std::string(100, 'b');
  std::filesystem::create_directories(deep);
  {
    auto acceptor = listen_shm(deep / "socket", drop_connection());
    ASSERT_TRUE(acceptor.ok()) << acceptor.status().to_string();
    const auto connection = make_shm_connector(deep / "socket")->connect(kPatience);
    EXPECT_TRUE(connection.ok()) << connection.status().to_string();
  }
  EXPECT_TRUE(std::filesystem::is_empty(deep));
  const auto long_name = deep / std::string(200, 'c');
  const std::string refusal =
      "invalid_argument: " + long_name.string() + ": the name of the socket is too long";
  EXPECT_EQ(listen_shm(long_name, drop_connection()).status().to_string(), refusal);
  EXPECT_EQ(make_shm_connector(long_name)->connect(kPatience).status().to_string(), refusal);
}

TEST(ShmSocket, AStaleOneIsReplaced) {
  const test::TemporaryDirectory directory;
  const auto path = directory.path() / "socket";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.string().copy(address.sun_path, sizeof(address.sun_path) - 1);
  {
    const UniqueFd stale(::socket(AF_UNIX, SOCK_STREAM, 0));
    ASSERT_EQ(::bind(stale.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  ASSERT_TRUE(std::filesystem::is_socket(path));
  EXPECT_EQ(make_shm_connector(path)->connect(kPatience).status().code(), Errc::kUnavailable);
  const auto acceptor = listen_shm(path, drop_connection());
  ASSERT_TRUE(acceptor.ok()) << acceptor.status().to_string();
  EXPECT_TRUE(make_shm_connector(path)->connect(kPatience).ok());
}

TEST(ShmSocket, AnAcceptorThatWasReplacedLeavesTheFileOfTheNewOne) {
  const test::TemporaryDirectory directory;
  const auto path = directory.path() / "socket";
  auto old = listen_shm(path, drop_connection());
  const auto acceptor = listen_shm(path, drop_connection());
  ASSERT_TRUE(old.ok() && acceptor.ok());
  old.value().reset();
  EXPECT_TRUE(make_shm_connector(path)->connect(kPatience).ok());
}

TEST(ShmSocket, OtherThingsAtThePathAreRefused) {
  const test::TemporaryDirectory directory;
  const auto file = directory.path() / "file";
  std::ofstream(file) << "content";
  EXPECT_EQ(listen_shm(file, drop_connection()).status().to_string(),
            "invalid_argument: " + file.string() + ": exists and is not a socket");
  EXPECT_EQ(std::filesystem::file_size(file), 7U);
  EXPECT_EQ(make_shm_connector(file)->connect(kPatience).status().code(), Errc::kUnavailable);
  const auto missing = directory.path() / "missing" / "socket";
  EXPECT_EQ(listen_shm(missing, drop_connection()).status().code(), Errc::kNotFound);
  EXPECT_EQ(make_shm_connector(missing)->connect(kPatience).status().code(), Errc::kUnavailable);
  EXPECT_EQ(listen_shm(directory.path() / "", drop_connection()).status().code(),
            Errc::kInvalidArgument);
}

// -- processes -----------------------------------------------------------------------------------

// A process that runs `action`, which must not return. Made while this process has one thread only.
class Child {
public:
  explicit Child(const std::function<void(Child&)>& action) {
    TIDEMILL_CHECK(::pipe(to_child_.data()) == 0 && ::pipe(to_parent_.data()) == 0);
    id_ = ::fork();
    TIDEMILL_CHECK(id_ >= 0);
    if (id_ == 0) {
      action(*this);
      ::_exit(1);
    }
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    kill();
    for (const int descriptor : {to_child_[0], to_child_[1], to_parent_[0], to_parent_[1]}) {
      ::close(descriptor);
    }
  }

  void kill() {
    if (id_ > 0) {
      ::kill(id_, SIGKILL);
      (void)exit_status();
    }
  }
  // Waits for its end.
  int exit_status() {
    int status = 0;
    TIDEMILL_CHECK(::waitpid(id_, &status, 0) == id_);
    id_ = 0;
    return status;
  }
  // Each process tells the other one once that it may go on.
  void tell_parent() const { tell(to_parent_[1]); }
  void wait_for_child() const { wait(to_parent_[0]); }
  void tell_child() const { tell(to_child_[1]); }
  void wait_for_parent() const { wait(to_child_[0]); }

private:
  static void tell(int descriptor) { TIDEMILL_CHECK(::write(descriptor, "x", 1) == 1); }
  static void wait(int descriptor) {
    char byte = 0;
    TIDEMILL_CHECK(::read(descriptor, &byte, 1) == 1);
  }

  std::array<int, 2> to_child_{};
  std::array<int, 2> to_parent_{};
  pid_t id_ = 0;
};

// Sends every frame back.
class EchoListener final : public ConnectionListener {
public:
  explicit EchoListener(Connection& side) : side_(side) {}
  void on_frame(const Buffer& frame) override { (void)side_.send(frame); }
  void on_closed(const Status& /*reason*/) override {}

private:
  Connection& side_;
};

TEST(ShmProcesses, AConnectionClosesWhenTheProcessOfItsAcceptorIsKilled) {
  const test::TemporaryDirectory directory;
  const auto path = directory.path() / "socket";
  Child child([&](Child& self) {
    std::unique_ptr<Connection> connection;
    std::optional<EchoListener> echo;
    const auto acceptor = listen_shm(path, [&](std::unique_ptr<Connection> accepted) {
      connection = std::move(accepted);
      connection->start(echo.emplace(*connection));
    });
    TIDEMILL_CHECK(acceptor.ok());
    self.tell_parent();
    self.wait_for_parent();  // which kills it instead
  });
  child.wait_for_child();
  const auto made = make_shm_connector(path)->connect(kPatience);
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  RecordingListener listener;
  made.value()->start(listener);
  for (std::uint64_t i = 0; i < 100; ++i) {
    ASSERT_TRUE(made.value()->send(numbered_frame(i, 30'000)).ok());
  }
  ASSERT_TRUE(wait_until([&] { return listener.frames().size() == 100; }));
  EXPECT_EQ(number_of(listener.frames()[99]), 99U);
  EXPECT_EQ(listener.closed(), 0);
  child.kill();
  EXPECT_TRUE(wait_until([&] { return listener.closed() == 1; }));
  EXPECT_EQ(listener.reason().to_string(),
            "unavailable: the other side has closed the connection, or its process has ended");
  EXPECT_EQ(made.value()->send(Buffer()).code(), Errc::kUnavailable);
}

TEST(ShmProcesses, AProcessThatIsKilledWhileItSendsLeavesWholeFrames) {
  const test::TemporaryDirectory directory;
  const auto path = directory.path() / "socket";
  Child child([&](Child& self) {
    self.wait_for_parent();
    const auto made = make_shm_connector(path, {.ring_bytes = 4096})->connect(kPatience);
    TIDEMILL_CHECK(made.ok());
    for (std::uint64_t i = 0;; ++i) {
      (void)made.value()->send(numbered_frame(i, 1000));
      if (i > 10'000) {  // keeps its queue short
        self.wait_for_parent();
      }
    }
  });
  OrderListener listener(1);
  std::atomic<Connection*> started = nullptr;
  std::unique_ptr<Connection> connection;
  const auto acceptor = listen_shm(path, [&](std::unique_ptr<Connection> accepted) {
    connection = std::move(accepted);
    connection->start(listener);
    started = connection.get();
  });
  ASSERT_TRUE(acceptor.ok()) << acceptor.status().to_string();
  child.tell_child();
  EXPECT_TRUE(wait_until([&] { return started != nullptr && listener.count() > 1000; }));
  child.kill();
  EXPECT_TRUE(wait_until([&] { return listener.closed(); }));
}

TEST(ShmProcesses, AnotherUserIsRefused) {
  if (::geteuid() != 0) {
    GTEST_SKIP() << "not run: only root can start a process of another user";
  }
  const test::TemporaryDirectory directory;
  const auto path = directory.path() / "socket";
  std::filesystem::permissions(directory.path(), std::filesystem::perms::all);
  Child child([&](Child& self) {
    self.wait_for_parent();
    TIDEMILL_CHECK(::setuid(65534) == 0);
    // The connector refuses the acceptor, so the child connects without it.
    const auto refused = make_shm_connector(path)->connect(kPatience);
    TIDEMILL_CHECK(refused.status().message() ==
                   path.string() + ": the acceptor runs as another user");
    const UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.string().copy(address.sun_path, sizeof(address.sun_path) - 1);
    TIDEMILL_CHECK(
        ::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    char byte = 0;
    TIDEMILL_CHECK(::recv(socket.get(), &byte, 1, 0) == 0);  // the acceptor has closed it
    ::_exit(0);
  });
  std::atomic<int> num_accepted = 0;
  ShmOptions options;
  options.handshake_timeout = std::chrono::hours(1);
  const auto acceptor = listen_shm(
      path, [&](const std::unique_ptr<Connection>& /*accepted*/) { ++num_accepted; }, options);
  ASSERT_TRUE(acceptor.ok()) << acceptor.status().to_string();
  ASSERT_EQ(::chmod(path.c_str(), 0666), 0);
  child.tell_child();
  EXPECT_EQ(child.exit_status(), 0);
  EXPECT_EQ(num_accepted, 0);
}

}  // namespace
}  // namespace tidemill::transport
