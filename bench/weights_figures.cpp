// SPDX-License-Identifier: Apache-2.0
#include "bench/weights_figures.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "base/check.hpp"
#include "base/files/unique_fd.hpp"
#include "bench/times.hpp"
#include "transport/segments/segment_pool.hpp"
#include "transport/segments/segment_reader.hpp"
#include "transport/segments/segment_server.hpp"

namespace tidemill::bench {
namespace {

using SteadyClock = std::chrono::steady_clock;

transport::SegmentReaderOptions reader_options(const std::filesystem::path& path,
                                               std::uint32_t number) {
  transport::SegmentReaderOptions options;
  options.path = path;
  options.reader = number;
  options.token.fill(static_cast<std::byte>(number));
  return options;
}

// A process that resolves the buffers that it is sent, and replies when it has all of them.
class ReaderProcess {
public:
  ReaderProcess(const std::filesystem::path& path, std::uint32_t number) {
    std::array<int, 2> ends{};
    TIDEMILL_CHECK(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0);
    socket_ = UniqueFd(ends[0]);
    const UniqueFd theirs(ends[1]);
    pid_ = ::fork();
    if (pid_ == 0) {
      socket_.reset();
      read_forever(theirs.get(), reader_options(path, number));
      ::_exit(0);
    }
  }
  ReaderProcess(const ReaderProcess&) = delete;
  ReaderProcess& operator=(const ReaderProcess&) = delete;
  ~ReaderProcess() {
    if (pid_ > 0) {  // processes that were forked later hold its socket open
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }
  [[nodiscard]] bool started() const { return pid_ > 0; }

  void send(const std::vector<Buffer>& buffers) const {
    std::vector<BufferIdentity> identities;
    identities.reserve(buffers.size());
    for (const Buffer& buffer : buffers) {
      identities.push_back(buffer.identity());
    }
    const std::size_t bytes = identities.size() * sizeof(BufferIdentity);
    TIDEMILL_CHECK(::write(socket_.get(), identities.data(), bytes) == static_cast<ssize_t>(bytes));
  }
  void wait() const {
    char reply = 0;
    TIDEMILL_CHECK(::read(socket_.get(), &reply, 1) == 1);
  }

private:
  static void read_forever(int socket, const transport::SegmentReaderOptions& options) {
    char go = 0;
    TIDEMILL_CHECK(::read(socket, &go, 1) == 1);  // the server listens
    const auto reader = transport::SegmentReader::connect(options);
    TIDEMILL_CHECK(reader.ok()) << reader.status().message();
    TIDEMILL_CHECK(::write(socket, &go, 1) == 1);
    std::vector<BufferIdentity> identities(1024);
    for (;;) {
      const ssize_t got =
          ::read(socket, identities.data(), identities.size() * sizeof(BufferIdentity));
      if (got <= 0) {
        return;
      }
      std::vector<Buffer> held;
      for (std::size_t i = 0; i < static_cast<std::size_t>(got) / sizeof(BufferIdentity); ++i) {
        auto buffer = reader.value()->resolve(identities[i]);
        TIDEMILL_CHECK(buffer.ok()) << buffer.status().message();
        held.push_back(std::move(buffer).value());
      }
      TIDEMILL_CHECK(::write(socket, &go, 1) == 1);
    }
  }

  UniqueFd socket_;
  pid_t pid_ = -1;

public:
  void connect() const {
    const char go = 1;
    TIDEMILL_CHECK(::write(socket_.get(), &go, 1) == 1);
    wait();
  }
};

struct Published {
  std::vector<Buffer> buffers;
  double copy_seconds = 0.0;
};

// Copies the tensors into the pool, as a trainer does.
Result<Published> publish(transport::SegmentPool& pool,
                          const std::vector<std::vector<std::byte>>& tensors) {
  Published published;
  for (const std::vector<std::byte>& tensor : tensors) {
    TIDEMILL_ASSIGN_OR_RETURN(UnwrittenBuffer made,
                              pool.allocate_unwritten(tensor.size(), DType::kU8));
    const auto start = SteadyClock::now();
    std::memcpy(made.bytes.data(), tensor.data(), tensor.size());
    published.copy_seconds += elapsed_seconds(start);
    published.buffers.push_back(std::move(made.buffer));
  }
  return published;
}

Status lend(transport::SegmentPool& pool, const Published& published,
            const std::vector<std::unique_ptr<ReaderProcess>>& readers) {
  for (std::uint32_t reader = 1; reader <= readers.size(); ++reader) {
    for (const Buffer& buffer : published.buffers) {
      TIDEMILL_RETURN_IF_ERROR(pool.lend(buffer, reader));
    }
    readers[reader - 1]->send(published.buffers);
  }
  for (const auto& reader : readers) {
    reader->wait();
  }
  return {};
}

}  // namespace

Result<WeightsFigure> measure_weights(const WeightsMeasure& how) {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("tidemill-bench-" + std::to_string(::getpid()));
  std::vector<std::unique_ptr<ReaderProcess>> readers;
  for (std::uint32_t i = 1; i <= how.readers; ++i) {
    readers.push_back(std::make_unique<ReaderProcess>(path, i));
    if (!readers.back()->started()) {
      return Status(Errc::kUnavailable, "cannot start a process");
    }
  }
  transport::SegmentPoolOptions options;
  options.pool = 1;
  options.max_bytes = 4 * how.bytes;
  options.max_free_bytes = 4 * how.bytes;
  transport::SegmentPool pool(options);
  transport::SegmentServerOptions serving;
  serving.path = path;
  TIDEMILL_ASSIGN_OR_RETURN(const auto server, transport::SegmentServer::listen(pool, serving));
  for (std::uint32_t i = 1; i <= how.readers; ++i) {
    const auto reader = reader_options(path, i);
    TIDEMILL_RETURN_IF_ERROR(pool.add_reader({i, reader.token, 4 * how.bytes}));
    readers[i - 1]->connect();
  }
  const std::vector<std::vector<std::byte>> tensors(
      how.tensors, std::vector<std::byte>(how.bytes / how.tensors, std::byte{1}));
  WeightsFigure figure;
  std::vector<double> seconds;
  std::vector<double> copies;
  for (std::uint32_t i = 0; i <= how.repetitions; ++i) {
    const auto start = SteadyClock::now();
    TIDEMILL_ASSIGN_OR_RETURN(const Published published, publish(pool, tensors));
    const std::uint64_t before = pool.use().held_bytes();
    TIDEMILL_RETURN_IF_ERROR(lend(pool, published, readers));
    if (i > 0) {  // the first one makes the segments
      seconds.push_back(elapsed_seconds(start));
      copies.push_back(published.copy_seconds);
    }
    figure.shared_bytes = pool.use().held_bytes();
    figure.bytes_of_one_more = (figure.shared_bytes - before) / how.readers;
  }
  figure.seconds = median(seconds);
  figure.copy_seconds = median(copies);
  return figure;
}

}  // namespace tidemill::bench
