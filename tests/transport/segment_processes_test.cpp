// SPDX-License-Identifier: Apache-2.0
// Segments between processes, some of which are killed at random moments.
#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <fcntl.h>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <poll.h>
#include <string>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/files/unique_fd.hpp"
#include "base/random.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/wait_until.hpp"
#include "tests/transport/segment_fixture.hpp"

namespace tidemill::transport {
namespace {

// Waits until `descriptor` can be read.
[[nodiscard]] bool readable(int descriptor) {
  pollfd event{descriptor, POLLIN, 0};
  return ::poll(&event, 1, kWaitMs) == 1;
}

// A buffer that a test sends, as its control messages carry it.
struct SentBuffer {
  BufferIdentity identity;
  std::uint64_t seed = 0;  // of its pattern
};

// Both ends of a channel of packets between the test and a process that it starts.
struct Channel {
  UniqueFd test;
  UniqueFd process;
};

Channel make_channel() {
  std::array<int, 2> ends{};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends.data()), 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

template <class Value>
[[nodiscard]] bool put(int socket, const Value& value) {
  return ::send(socket, &value, sizeof(value), MSG_NOSIGNAL) == sizeof(value);
}

template <class Value>
[[nodiscard]] std::optional<Value> get(int socket) {
  Value value{};
  const bool whole = readable(socket) && ::recv(socket, &value, sizeof(value), 0) == sizeof(value);
  return whole ? std::optional(value) : std::nullopt;
}

// Starts processes from one without threads, so that each of them begins without threads and locks
// of the test. Make it before anything that starts a thread.
class ProcessStarter {
public:
  // What a process does, given a number; it then exits with the result.
  using Body = std::function<int(std::uint64_t)>;

  explicit ProcessStarter(const Body& body) {
    Channel channel = make_channel();
    starter_ = ::fork();
    if (starter_ == 0) {
      channel.test.reset();
      serve(channel.process.get(), body);
    }
    commands_ = std::move(channel.test);
  }
  ProcessStarter(const ProcessStarter&) = delete;
  ProcessStarter& operator=(const ProcessStarter&) = delete;
  ~ProcessStarter() {
    commands_.reset();
    ::waitpid(starter_, nullptr, 0);
  }

  // Starts a process and returns its id.
  pid_t start(std::uint64_t number) const {
    EXPECT_TRUE(put(commands_.get(), number));
    return get<pid_t>(commands_.get()).value_or(-1);
  }

private:
  [[noreturn]] static void serve(int commands, const Body& body) {
    ::signal(SIGCHLD, SIG_IGN);  // processes that end leave nothing
    std::uint64_t number = 0;
    while (::recv(commands, &number, sizeof(number), 0) == sizeof(number)) {
      const pid_t child = ::fork();
      if (child == 0) {
        ::close(commands);
        ::_exit(body(number));
      }
      static_cast<void>(put(commands, child));
    }
    ::_exit(0);
  }

  pid_t starter_ = -1;
  UniqueFd commands_;
};

// Kills a process and waits until it has ended.
void kill_and_wait(pid_t process) {
  const UniqueFd ended(static_cast<int>(::syscall(SYS_pidfd_open, process, 0)));
  ::kill(process, SIGKILL);
  if (ended.is_open()) {  // otherwise it had ended before
    EXPECT_TRUE(readable(ended.get()));
  }
}

class SegmentProcessesTest : public ::testing::Test {
protected:
  [[nodiscard]] std::filesystem::path path() const { return directory_.path() / "segments"; }
  [[nodiscard]] std::filesystem::path control_path() const { return directory_.path() / "control"; }

  [[nodiscard]] SegmentReaderOptions options_of(std::uint64_t reader) const {
    SegmentReaderOptions options;
    options.path = path();
    options.reader = static_cast<std::uint32_t>(reader);
    options.token = token_of(reader);
    return options;
  }

  void serve(const SegmentPoolOptions& options) {
    pool_ = std::make_unique<SegmentPool>(options);
    SegmentServerOptions server;
    server.path = path();
    server_ = SegmentServer::listen(*pool_, server).value();
  }

  // Listens for the control connections of processes.
  void listen() {
    control_ = UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    const sockaddr_un address = control_address();
    ASSERT_EQ(::bind(control_.get(), generic(address), sizeof(address)), 0);
    ASSERT_EQ(::listen(control_.get(), 64), 0);
  }

  // Waits for the control connection of the process with a number, and drops those of others.
  UniqueFd accept(std::uint64_t number) const {
    while (readable(control_.get())) {
      UniqueFd socket(::accept4(control_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (get<std::uint64_t>(socket.get()) == number) {
        return socket;
      }
    }
    ADD_FAILURE() << "process " << number << " did not connect";
    return {};
  }

  // In a process: connects to the test.
  [[nodiscard]] UniqueFd connect(std::uint64_t number) const {
    UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    const sockaddr_un address = control_address();
    if (::connect(socket.get(), generic(address), sizeof(address)) != 0 ||
        !put(socket.get(), number)) {
      ::_exit(10);
    }
    return socket;
  }

  [[nodiscard]] sockaddr_un control_address() const {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::ranges::copy(control_path().native(), static_cast<char*>(address.sun_path));
    return address;
  }
  static const sockaddr* generic(const sockaddr_un& address) {
    return reinterpret_cast<const sockaddr*>(&address);
  }

  test::TemporaryDirectory directory_;
  UniqueFd control_;
  std::unique_ptr<SegmentPool> pool_;
  std::unique_ptr<SegmentServer> server_;
};

// Reads a whole buffer in another process. The pages are those that the pool has written.
TEST_F(SegmentProcessesTest, FourProcessesReadOneSnapshotWithoutCopies) {
  struct Report {
    std::uint64_t matching = 0;
    std::uint64_t inode = 0;
  };
  const ProcessStarter starter([this](std::uint64_t number) {
    const auto reader = SegmentReader::connect(options_of(number)).value();
    const UniqueFd control = connect(number);
    std::vector<Buffer> held;
    Report report;
    for (int i = 0; i < 8; ++i) {
      const auto sent = get<SentBuffer>(control.get());
      if (!sent) {
        return 1;
      }
      held.push_back(reader->resolve(sent->identity).value());
      report.matching += has_pattern(held.back(), sent->seed) ? 1U : 0U;
    }
    report.inode = mapped_inode(held.back().bytes().data());
    static_cast<void>(put(control.get(), report));
    static_cast<void>(readable(control.get()));  // until the test ends
    return 0;
  });
  listen();
  SegmentPoolOptions options = small_pool();
  options.max_bytes = 16 << 20;
  serve(options);
  std::vector<Buffer> snapshot;
  for (std::uint64_t i = 0; i < 8; ++i) {
    snapshot.push_back(patterned(*pool_, (1 << 20) + i, i).value());
  }
  for (std::uint64_t number = 1; number <= 4; ++number) {
    ASSERT_TRUE(
        pool_->add_reader({static_cast<std::uint32_t>(number), token_of(number), 16 << 20}).ok());
    starter.start(number);
    const UniqueFd control = accept(number);
    for (std::uint64_t i = 0; i < 8; ++i) {
      ASSERT_TRUE(pool_->lend(snapshot[i], static_cast<std::uint32_t>(number)).ok());
      ASSERT_TRUE(put(control.get(), SentBuffer{snapshot[i].identity(), i}));
    }
    const auto report = get<Report>(control.get());
    ASSERT_TRUE(report.has_value());
    EXPECT_EQ(report->matching, 8U);
    EXPECT_EQ(report->inode, mapped_inode(snapshot.back().bytes().data())) << "the same pages";
  }
  snapshot.clear();
  EXPECT_TRUE(wait_until_empty(*pool_, options.max_bytes)) << "all processes have ended";
}

// Kills readers at random moments: before they connect, while they resolve, hold and return.
class KilledReaders : public SegmentProcessesTest {
protected:
  // What the process of a reader does until it is killed.
  int read(std::uint64_t number) const {
    const auto reader = SegmentReader::connect(options_of(number));
    if (!reader.ok()) {
      return 2;  // dropped already
    }
    const UniqueFd control = connect(number);
    std::vector<Buffer> held;
    while (const auto sent = get<SentBuffer>(control.get())) {
      Result<Buffer> buffer = reader.value()->resolve(sent->identity);
      const bool right = buffer.ok() && has_pattern(buffer.value(), sent->seed);
      if (!put(control.get(), right)) {
        return 3;
      }
      if (right) {
        held.push_back(std::move(buffer).value());
      }
      if (held.size() > 6) {
        held.erase(held.begin(), held.begin() + 4);
      }
    }
    return 0;
  }

  // Lends a new buffer to a reader and sends it. Waits for room if the pool is full.
  void send(std::uint64_t number, int control) {
    const std::size_t size = random_.below(3) == 0 ? random_.below(200'000) : random_.below(4000);
    const std::uint64_t seed = random_.bits();
    Result<Buffer> buffer = patterned(*pool_, size, seed);
    if (!buffer.ok()) {
      const auto room = std::make_shared<Event>();
      pool_->when_room(size, [room] { room->set(); });
      ASSERT_TRUE(room->wait());
      return;
    }
    const Status lent = pool_->lend(buffer.value(), static_cast<std::uint32_t>(number));
    if (lent.code() == Errc::kResourceExhausted) {
      return;  // the reader holds enough
    }
    ASSERT_TRUE(lent.ok()) << lent.to_string();
    ASSERT_TRUE(put(control, SentBuffer{buffer.value().identity(), seed}));
    ++sent_;
    ++unreported_;
  }

  // Counts the buffers that the reader has checked.
  void take_reports(int control) {
    bool right = false;
    while (::recv(control, &right, sizeof(right), MSG_DONTWAIT) == sizeof(right)) {
      ASSERT_TRUE(right);
      ++checked_;
      --unreported_;
    }
  }

  // The life of one reader.
  void round(const ProcessStarter& starter, std::uint64_t number) {
    const auto reader = static_cast<std::uint32_t>(number);
    ASSERT_TRUE(pool_->add_reader({reader, token_of(number), 1 << 20}).ok());
    const pid_t process = starter.start(number);
    const std::uint64_t messages = random_.below(30);
    unreported_ = 0;
    UniqueFd control;
    if (messages > 2) {
      control = accept(number);
      for (std::uint64_t i = 0; i < messages; ++i) {
        ASSERT_NO_FATAL_FAILURE(send(number, control.get()));
        if (random_.below(4) == 0 && unreported_ > 0) {
          ASSERT_TRUE(readable(control.get()));
          ASSERT_NO_FATAL_FAILURE(take_reports(control.get()));
        }
      }
    } else if (messages > 0) {  // a loan that waits for the reader, which may never connect
      const Buffer early = patterned(*pool_, 5000, number).value();
      ASSERT_TRUE(pool_->lend(early, reader).ok());
    }
    kill_and_wait(process);
    if (control.is_open()) {
      ASSERT_NO_FATAL_FAILURE(take_reports(control.get()));
      // Its connection ends, which returns its loans without a call.
      if (number % 8 == 0) {
        ASSERT_TRUE(wait_until_empty(*pool_, options_.max_bytes));
        ++emptied_;
      }
    }
    pool_->drop_reader(reader);
  }

  RandomStream random_{20'261'019};
  SegmentPoolOptions options_ = small_pool();
  std::uint64_t sent_ = 0;
  std::uint64_t checked_ = 0;
  std::uint64_t unreported_ = 0;  // in this round
  int emptied_ = 0;
};

TEST_F(KilledReaders, EverySegmentIsReclaimedAfterAThousandKills) {
  const ProcessStarter starter([this](std::uint64_t number) { return read(number); });
  listen();
  options_.max_bytes = 2 << 20;
  options_.max_free_bytes = 1 << 20;
  serve(options_);
  for (std::uint64_t number = 1; number <= 1000; ++number) {
    SCOPED_TRACE("reader " + std::to_string(number));
    ASSERT_NO_FATAL_FAILURE(round(starter, number));
  }
  EXPECT_TRUE(wait_until_empty(*pool_, options_.max_bytes));
  EXPECT_EQ(pool_->use().used_bytes, 0U);
  EXPECT_EQ(pool_->use().retired_bytes, 0U);
  EXPECT_EQ(pool_->use().segments, 0U);
  // The thread of the server unmaps a segment after the pool has forgotten it.
  EXPECT_TRUE(test::wait_until([] { return mapped_segments() == 0; }, std::chrono::seconds(10)));
  EXPECT_GT(sent_, 10'000U);
  EXPECT_GT(checked_, 3'000U);
  EXPECT_GT(emptied_, 50);
}

// Returns how many names of segments there are in the directory of shared memory.
std::ptrdiff_t named_segments() {
  const std::filesystem::directory_iterator names("/dev/shm");
  return std::count_if(begin(names), end(names), [](const auto& entry) {
    return entry.path().filename().native().find("segment") != std::string::npos;
  });
}

TEST_F(SegmentProcessesTest, AKilledPoolLeavesNothingAndItsReadersKeepWhatTheyHave) {
  const ProcessStarter starter([this](std::uint64_t number) {
    serve(small_pool());
    const Status added = pool_->add_reader({1, token_of(1), 8 << 20});
    const Buffer buffer = patterned(*pool_, 100'000, 5).value();
    const Status lent = pool_->lend(buffer, 1);
    const UniqueFd control = connect(number);
    if (!added.ok() || !lent.ok() || !put(control.get(), SentBuffer{buffer.identity(), 5})) {
      return 1;
    }
    static_cast<void>(readable(control.get()));
    return 0;
  });
  listen();
  const pid_t process = starter.start(9);
  const UniqueFd control = accept(9);
  const SentBuffer sent = get<SentBuffer>(control.get()).value();
  Event lost;
  SegmentReaderOptions options = options_of(1);
  options.on_lost = [&](const Status&) { lost.set(); };
  auto reader = SegmentReader::connect(options).value();
  std::optional<Buffer> held = reader->resolve(sent.identity).value();
  EXPECT_EQ(mapped_segments(), 1);
  EXPECT_EQ(named_segments(), 0);
  kill_and_wait(process);
  ASSERT_TRUE(lost.wait());
  EXPECT_TRUE(has_pattern(*held, 5)) << "memory ends with its last mapping";
  EXPECT_EQ(reader->resolve(sent.identity).status().code(), Errc::kUnavailable);
  held.reset();
  reader.reset();
  EXPECT_EQ(mapped_segments(), 0);
  EXPECT_EQ(named_segments(), 0);
  // A new server takes the path of the killed one.
  serve(small_pool());
}

// -- limits of the system
// --------------------------------------------------------------------------

// Runs `body` in a process of its own, and returns whether it succeeds.
bool succeeds_in_process(const std::function<bool()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(body() ? 0 : 1);
  }
  int state = 0;
  ::waitpid(child, &state, 0);
  return WIFEXITED(state) && WEXITSTATUS(state) == 0;
}

TEST(SegmentLimits, MemoryThatTheSystemRefusesIsAnError) {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  constexpr bool kLimitsAddresses = true;
#else
  constexpr bool kLimitsAddresses = false;  // a sanitizer maps more than any limit
#endif
  struct Case {
    __rlimit_resource resource;
    rlim_t limit;
    std::string expected;
    bool run;
  };
  const Case cases[] = {
      {RLIMIT_FSIZE, 1 << 20, "cannot allocate it: File too large", true},
      {RLIMIT_NOFILE, 0, "cannot create it: Too many open files", true},
      {RLIMIT_AS, 64 << 20, "cannot map it: Cannot allocate memory", kLimitsAddresses},
  };
  for (const Case& each : cases) {
    EXPECT_TRUE(!each.run || succeeds_in_process([&] {
      SegmentPoolOptions options = small_pool();
      options.max_bytes = 512 << 20;
      SegmentPool pool(options);
      const rlimit limit{each.limit, each.limit};
      if (::setrlimit(each.resource, &limit) != 0) {
        return false;
      }
      const Status status = pool.allocate_unwritten(128 << 20, DType::kU8).status();
      const bool named =
          status.code() == Errc::kResourceExhausted &&
          status.message() == "shared memory: segment of 134217728 bytes: " + each.expected;
      return named && pool.use().held_bytes() == 0;
    })) << each.expected;
  }
}

// The mode of the socket keeps other users out, and so does the server if the mode was changed.
TEST_F(SegmentProcessesTest, AnotherUserIsRefused) {
  if (::geteuid() != 0) {
    GTEST_SKIP() << "needs the right to become another user";
  }
  constexpr uid_t kOther = 65'534;
  const auto connects_as_other = [&] {
    return succeeds_in_process([&] {
      if (::setresuid(kOther, kOther, kOther) != 0) {
        return false;
      }
      const UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET, 0));
      sockaddr_un address{};
      address.sun_family = AF_UNIX;
      std::ranges::copy(path().native(), static_cast<char*>(address.sun_path));
      // The server closes the connection without a word.
      char byte = 0;
      return ::connect(socket.get(), generic(address), sizeof(address)) == 0 &&
             readable(socket.get()) && ::recv(socket.get(), &byte, 1, 0) == 0;
    });
  };
  ASSERT_EQ(::chmod(directory_.path().c_str(), 0755), 0);
  serve(small_pool());
  EXPECT_FALSE(connects_as_other()) << "the mode is 0600";
  ASSERT_EQ(::chmod(path().c_str(), 0666), 0);
  EXPECT_TRUE(connects_as_other()) << "it is closed at once";
}

}  // namespace
}  // namespace tidemill::transport
