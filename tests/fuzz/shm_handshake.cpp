// SPDX-License-Identifier: Apache-2.0
// Fuzzes the handshake of connections through shared memory, and the first frames in that memory.
// An even first byte: a connector sends a hello with the descriptors that the second byte chooses.
// The hello follows, then the counts that the connector has published in its memory, and the
// content of its ring. Odd: an acceptor sends the rest of the input as its reply.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/fuzz/raw_sockets.hpp"
#include "tests/fuzz/target.hpp"
#include "tests/support/temporary_directory.hpp"
#include "transport/envelope.hpp"
#include "transport/shm/shm_connection.hpp"
#include "transport/shm/shm_memory.hpp"
#include "transport/shm/shm_rendezvous.hpp"

namespace tidemill::fuzz {
namespace {

using transport::Connection;
namespace shm = transport::shm;

constexpr std::size_t kRing = 4096;
constexpr std::size_t kMemory = shm::kControlBytes + 2 * kRing;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// Waits for what the threads of the transport do.
class Received final : public transport::ConnectionListener {
public:
  void on_frame(const Buffer& frame) override {
    const std::lock_guard lock(mutex_);
    largest_ = std::max(largest_, frame.size_bytes());
  }
  void on_closed(const Status& reason) override {
    const std::lock_guard lock(mutex_);
    reason_ = reason;
    ++closed_;
    changed_.notify_all();
  }
  Status wait_until_closed() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return closed_ > 0; });
    require(closed_ == 1, "a connection closes once");
    require(largest_ <= transport::kMaxEnvelopeBytes, "no frame is larger than the limit");
    return reason_;
  }

private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t largest_ = 0;
  int closed_ = 0;
  Status reason_;
};

// An acceptor for all inputs: what one of them does must not harm the others.
class Host {
public:
  Host() {
    auto acceptor = transport::listen_shm(path(), [this](std::unique_ptr<Connection> connection) {
      const std::lock_guard lock(mutex_);
      accepted_.push_back(std::move(connection));
      changed_.notify_all();
    });
    require_ok(acceptor.status(), "a process can listen");
    acceptor_ = std::move(acceptor).value();
  }
  [[nodiscard]] std::filesystem::path path() const { return directory_.path() / "s"; }
  std::unique_ptr<Connection> accepted() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !accepted_.empty(); });
    std::unique_ptr<Connection> first = std::move(accepted_.front());
    accepted_.erase(accepted_.begin());
    return first;
  }
  [[nodiscard]] bool has_accepted() {
    const std::lock_guard lock(mutex_);
    return !accepted_.empty();
  }

private:
  test::TemporaryDirectory directory_{test::memory_directory_path()};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Connection>> accepted_;
  std::unique_ptr<transport::Acceptor> acceptor_;
};

// Returns the memory of a connector that has written: its two counts, and its ring.
std::string written_memory(InputReader input) {
  std::vector<shm::Control> words(1);
  const auto load = [&](std::atomic<std::uint64_t>& word) {
    std::uint64_t value = 0;
    const std::string_view bytes = input.bytes(sizeof(value));
    std::memcpy(&value, bytes.data(), bytes.size());
    word = value;
  };
  load(words[0].sides[0].counts.written);
  load(words[0].sides[1].counts.read);
  std::string memory(kMemory, '\0');
  std::memcpy(memory.data(), static_cast<const void*>(words.data()), sizeof(shm::Control));
  const std::string_view ring = input.bytes(kRing);
  memory.replace(shm::kControlBytes, ring.size(), ring);
  return memory;
}

// Returns a descriptor of a kind that a number chooses. Most are the memory that belongs there.
UniqueFd descriptor_of(unsigned kind, std::string_view content) {
  switch (kind) {
    case 4: return memory_of(content, kMemory, 0);
    case 5: return memory_of(content, kMemory - 1, kSeals);
    case 6: return UniqueFd(::eventfd(0, EFD_CLOEXEC));
    case 7: return UniqueFd(::open("/dev/null", O_RDWR | O_CLOEXEC));
    default: return memory_of(content, kMemory, kSeals);
  }
}

void connect_with(Host& host, InputReader input) {
  const unsigned choice = input.byte();
  const std::string_view hello = input.bytes(choice >= 128 ? input.byte() : sizeof(shm::Hello));
  const std::string memory = written_memory(input);
  std::vector<UniqueFd> files;
  std::vector<int> descriptors;
  for (unsigned i = 0; i < ((choice & 3U) + 1) % 4; ++i) {  // mostly one
    files.push_back(descriptor_of((choice >> 2U) & 7U, memory));
    descriptors.push_back(files.back().get());
  }
  const UniqueFd socket = connect_to(host.path(), SOCK_SEQPACKET);
  // The acceptor takes an empty packet for the end of the connection.
  (void)send_raw(socket.get(), hello, descriptors);
  shm::HelloReply reply;
  std::array<char, sizeof(reply)> bytes{};
  const ssize_t size = receive_raw(socket.get(), bytes);
  std::memcpy(&reply, bytes.data(), bytes.size());
  if (size <= 0) {
    require(!host.has_accepted(), "a connection that was closed is not accepted");
    return;
  }
  require(size == sizeof(reply) && reply.magic == shm::kHandshakeMagic &&
              reply.version == shm::kHandshakeVersion,
          "a reply is well-formed");
  if (reply.outcome != shm::HelloOutcome::kAccepted) {
    require(!host.has_accepted(), "a connection that was refused is not accepted");
    return;
  }
  require(files.size() == 1, "a hello has one descriptor");
  const std::unique_ptr<Connection> connection = host.accepted();
  Received received;
  connection->start(received);
  (void)connection->send(Buffer::copy_of(std::as_bytes(std::span("a frame"))));
  ::shutdown(socket.get(), SHUT_RDWR);
  const Status reason = received.wait_until_closed();
  require(reason.code() == Errc::kUnavailable || reason.code() == Errc::kCorruptData,
          "a connection ends with the hang-up or for a broken rule");
  require_refusal(reason, "");
}

void accept_with(InputReader input) {
  std::array<int, 2> pair{};
  require(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.data()) == 0,
          "there are sockets");
  const UniqueFd connector(pair[0]);
  {
    const UniqueFd acceptor(pair[1]);
    (void)send_raw(acceptor.get(), input.rest(), {});
  }
  const Status status =
      shm::receive_reply(connector.get(), SystemClock().now() + std::chrono::hours(1));
  if (!status.ok()) {
    require_refusal(status, "");
  }
}

}  // namespace

void shm_handshake(std::string_view input) {
  static Host host;
  InputReader reader(input);
  if (reader.byte() % 2 == 1) {
    accept_with(reader);
    return;
  }
  connect_with(host, reader);
  // The acceptor goes on.
  const auto connected = transport::make_shm_connector(host.path())->connect(std::chrono::hours(1));
  require_ok(connected.status(), "another process can connect");
  const std::unique_ptr<Connection> other = host.accepted();
}

}  // namespace tidemill::fuzz
