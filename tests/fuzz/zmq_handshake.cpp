// SPDX-License-Identifier: Apache-2.0
// Fuzzes an acceptor of connections over ZeroMQ. An even first byte: the rest are messages of a
// socket of ZeroMQ, each part of which is a byte with its size and whether more parts follow, and
// its content. Odd: the rest are the bytes that a process writes to the Unix socket.
//
// The hostile end speaks ZeroMQ's protocol ZMTP 3.0 itself, so it needs no thread of ZeroMQ.
#include <algorithm>
#include <array>
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
#include "transport/zmq/zmq_connection.hpp"

namespace tidemill::fuzz {
namespace {

using transport::Connection;

constexpr char kHello = 1;  // the first byte of a header, see transport/zmq/zmq_node.hpp
constexpr char kAccepted = 2;
constexpr char kRefused = 3;
constexpr char kBye = 6;

// -- ZMTP -----------------------------------------------------------------------------------------

constexpr unsigned char kMore = 1;
constexpr unsigned char kLong = 2;
constexpr unsigned char kCommand = 4;
constexpr std::size_t kGreetingBytes = 64;

std::string greeting() {
  std::string bytes(kGreetingBytes, '\0');
  bytes[0] = '\xff';
  bytes[9] = '\x7f';
  bytes[10] = 3;  // the version
  bytes.replace(12, 4, "NULL");
  const std::string ready("\5READY\13Socket-Type\0\0\0\6DEALER\10Identity\0\0\0\0", 41);
  bytes += static_cast<char>(kCommand);
  bytes += static_cast<char>(ready.size());
  return bytes + ready;
}

std::string part(std::string_view content, bool more) {
  TIDEMILL_CHECK(content.size() < 256);
  std::string bytes(1, static_cast<char>(more ? kMore : 0));
  bytes += static_cast<char>(content.size());
  return bytes.append(content);
}

bool write_all(int socket, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t size =
        uninterrupted([&] { return ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL); });
    if (size <= 0) {
      return false;
    }
    bytes.remove_prefix(static_cast<std::size_t>(size));
  }
  return true;
}

bool read_all(int socket, std::span<char> bytes) {
  while (!bytes.empty()) {
    const ssize_t size = receive_raw(socket, bytes);
    if (size <= 0) {
      return false;
    }
    bytes = bytes.subspan(static_cast<std::size_t>(size));
  }
  return true;
}

// Returns the content of the next message that is no command, or nothing at the end.
std::string read_message(int socket) {
  while (true) {
    std::array<char, 2> head{};
    require(read_all(socket, head), "the acceptor keeps the socket");
    const auto flags = static_cast<unsigned char>(head[0]);
    require((flags & (kMore | kLong)) == 0, "the acceptor sends short messages of one part");
    std::string content(static_cast<unsigned char>(head[1]), '\0');
    require(content.empty() || read_all(socket, content), "the acceptor sends whole messages");
    if ((flags & kCommand) == 0) {
      return content;
    }
  }
}

// -- the acceptor ---------------------------------------------------------------------------------

class Received final : public transport::ConnectionListener {
public:
  void on_frame(const Buffer& frame) override { bytes_ += frame.size_bytes(); }
  void on_closed(const Status& reason) override {
    const std::lock_guard lock(mutex_);
    reason_ = reason;
    changed_.notify_all();
  }
  Status wait_until_closed() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !reason_.ok(); });
    return reason_;
  }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }  // after the end

private:
  std::size_t bytes_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  Status reason_;
};

// An acceptor for all inputs: what one of them does must not harm the others.
class Host {
public:
  Host() {
    auto acceptor = transport::listen_zmq(endpoint(), [this](std::unique_ptr<Connection> one) {
      const std::lock_guard lock(mutex_);
      accepted_.push_back(std::move(one));
      changed_.notify_all();
    });
    require_ok(acceptor.status(), "a process can listen");
    acceptor_ = std::move(acceptor).value();
    connector_ = transport::new_zmq_connector(endpoint()).value();
  }
  [[nodiscard]] std::filesystem::path path() const { return directory_.path() / "s"; }
  // Returns the next `count` connections.
  std::vector<std::unique_ptr<Connection>> accepted(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return accepted_.size() >= count; });
    return std::exchange(accepted_, {});
  }
  // Another process connects, after all that an input has caused.
  void connect() {
    const auto connection = connector_->connect(std::chrono::hours(1));
    require_ok(connection.status(), "another process can connect");
    require(accepted(1).size() == 1, "nothing connects but what was accepted");
  }

private:
  [[nodiscard]] std::string endpoint() const { return "ipc://" + path().string(); }

  test::TemporaryDirectory directory_{test::memory_directory_path()};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Connection>> accepted_;
  std::unique_ptr<transport::Acceptor> acceptor_;
  std::unique_ptr<transport::Connector> connector_;
};

// -- what an input does ---------------------------------------------------------------------------

// The messages of an input, encoded.
struct Messages {
  std::string bytes;
  std::size_t num_hellos = 0;
  std::size_t num_bytes = 0;  // of all parts
};

Messages messages_of(InputReader input) {
  Messages messages;
  bool begins = true;
  while (!input.empty()) {
    const unsigned head = input.byte();
    const std::string_view content = input.bytes(head & 0x7FU);
    const bool more = (head & 0x80U) != 0 && !input.empty();
    messages.num_hellos += begins && !content.empty() && content.front() == kHello ? 1 : 0;
    messages.num_bytes += content.size();
    messages.bytes += part(content, more);
    begins = !more;
  }
  return messages;
}

// Each hello gets a reply, and no other message gets more than a bye.
void send_messages(Host& host, const InputReader& input) {
  Messages messages = messages_of(input);
  messages.bytes += part(std::string(1, kHello) + '\1', false);
  ++messages.num_hellos;
  const UniqueFd socket = connect_to(host.path(), SOCK_STREAM);
  require(write_all(socket.get(), greeting()), "the acceptor reads");
  std::array<char, kGreetingBytes> reply{};
  require(read_all(socket.get(), reply), "the acceptor greets");
  require(write_all(socket.get(), messages.bytes), "the acceptor reads");
  std::size_t num_accepted = 0;
  for (std::size_t replies = 0; replies < messages.num_hellos;) {
    const std::string message = read_message(socket.get());
    const char kind = message.empty() ? '\0' : message.front();
    require((message.size() == 1 && (kind == kAccepted || kind == kBye)) ||
                (message.size() == 2 && kind == kRefused),
            "a reply is well-formed");
    num_accepted += kind == kAccepted ? 1 : 0;
    replies += kind == kBye ? 0 : 1;
  }
  std::size_t frame_bytes = 0;
  const auto accepted = host.accepted(num_accepted);
  require(accepted.size() == num_accepted, "a connection is accepted once");
  ::shutdown(socket.get(), SHUT_RDWR);
  for (const std::unique_ptr<Connection>& connection : accepted) {
    Received received;
    connection->start(received);
    require_refusal(received.wait_until_closed(), "");
    frame_bytes += received.bytes();
  }
  require(frame_bytes <= messages.num_bytes, "frames hold what was sent");
}

void send_bytes(Host& host, const InputReader& input) {
  const UniqueFd socket = connect_to(host.path(), SOCK_STREAM);
  (void)write_all(socket.get(), input.rest());
  ::shutdown(socket.get(), SHUT_WR);
  std::array<char, 256> reply{};
  while (receive_raw(socket.get(), reply) > 0) {
  }
}

}  // namespace

void zmq_handshake(std::string_view input) {
  static Host host;
  InputReader reader(input);
  if (reader.byte() % 2 == 0) {
    send_messages(host, reader);
  } else {
    send_bytes(host, reader);
  }
  host.connect();
}

}  // namespace tidemill::fuzz
