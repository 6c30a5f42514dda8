// SPDX-License-Identifier: Apache-2.0
// Connections over ZeroMQ in a temporary folder, for tests.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <sys/un.h>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/buffer.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/wait_until.hpp"
#include "transport/connection.hpp"
#include "transport/zmq/zmq_connection.hpp"

namespace tidemill::transport {

/// After this long, a test that waits has failed.
inline constexpr auto kLongTime = std::chrono::seconds(60);

/// Waits until `done` returns true. Returns false if that takes too long.
inline bool eventually(const std::function<bool()>& done) {
  return test::wait_until(done, kLongTime);
}

/// Returns a frame of `size` bytes that differs from those of other seeds.
inline Buffer zmq_frame(std::uint64_t seed, std::size_t size) {
  std::vector<std::uint64_t> words(size / 8 + 1);
  for (std::size_t i = 0; i < words.size(); ++i) {
    words[i] = (seed + i) * 0x9E3779B97F4A7C15U;
  }
  return Buffer::adopt(std::move(words), DType::kU64).slice(0, size, DType::kU8);
}

/// Returns the address of a Unix socket at `path`.
inline sockaddr_un socket_address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::ranges::copy(path, address.sun_path);
  return address;
}

/// Returns whether two frames are equal.
inline bool equal(const Buffer& a, const Buffer& b) {
  return std::ranges::equal(a.bytes(), b.bytes());
}

/// Keeps a count of the frames of a connection, and the last one.
///
/// Threads: safe to use concurrently.
class CountingListener final : public ConnectionListener {
public:
  void on_frame(const Buffer& frame) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !held_; });
    ++frames_;
    last_ = frame;
  }
  void on_closed(const Status& reason) override {
    const std::lock_guard lock(mutex_);
    reason_ = reason;
  }

  /// Makes `on_frame` wait until `release`.
  void hold() {
    const std::lock_guard lock(mutex_);
    held_ = true;
  }
  void release() {
    const std::lock_guard lock(mutex_);
    held_ = false;
    changed_.notify_all();
  }

  [[nodiscard]] std::size_t frames() const {
    const std::lock_guard lock(mutex_);
    return frames_;
  }
  [[nodiscard]] Buffer last() const {
    const std::lock_guard lock(mutex_);
    return last_;
  }
  /// Returns why the connection is closed, or success if it is not.
  [[nodiscard]] Status reason() const {
    const std::lock_guard lock(mutex_);
    return reason_;
  }

private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false;
  std::size_t frames_ = 0;
  Buffer last_;
  Status reason_;
};

/// An endpoint in a temporary folder, where an acceptor listens.
class ZmqEndpoint {
public:
  using Pair = std::pair<std::unique_ptr<Connection>, std::unique_ptr<Connection>>;

  ZmqEndpoint() { listen(); }

  [[nodiscard]] std::string path() const { return (folder_.path() / "socket").string(); }
  [[nodiscard]] std::string address() const { return "ipc://" + path(); }

  void listen() {
    acceptor_.reset();
    acceptor_ = listen_zmq(address(), [this](std::unique_ptr<Connection> connection) {
                  const std::lock_guard lock(mutex_);
                  accepted_.push_back(std::move(connection));
                }).value();
  }
  void stop_listening() { acceptor_.reset(); }

  /// Returns the next connection that was accepted.
  [[nodiscard]] std::unique_ptr<Connection> accepted() {
    std::unique_ptr<Connection> connection;
    EXPECT_TRUE(eventually([&] {
      const std::lock_guard lock(mutex_);
      if (!accepted_.empty()) {
        connection = std::move(accepted_.front());
        accepted_.pop_front();
      }
      return connection != nullptr;
    }));
    return connection;
  }
  [[nodiscard]] std::size_t num_accepted() {
    const std::lock_guard lock(mutex_);
    return accepted_.size();
  }

  [[nodiscard]] Result<std::unique_ptr<Connection>> try_connect() {
    return connector_->connect(kLongTime);
  }
  /// Makes a connection. The first side has connected, and the second one was accepted.
  [[nodiscard]] Pair connect() {
    std::unique_ptr<Connection> connected = try_connect().value();
    return {std::move(connected), accepted()};
  }

private:
  test::TemporaryDirectory folder_;
  std::mutex mutex_;
  std::deque<std::unique_ptr<Connection>> accepted_;
  std::unique_ptr<Acceptor> acceptor_;
  std::unique_ptr<Connector> connector_ = new_zmq_connector(address()).value();
};

/// A connection with its listeners, which are started.
struct ZmqConversation {
  explicit ZmqConversation(ZmqEndpoint::Pair sides)
      : connected(std::move(sides.first)), accepted(std::move(sides.second)) {
    connected->start(at_connected);
    accepted->start(at_accepted);
  }

  /// Sends a frame each way. Returns whether both arrive.
  [[nodiscard]] bool round_trip() {
    const std::size_t before = at_connected.frames();
    const std::size_t before_accepted = at_accepted.frames();
    return connected->send(zmq_frame(1, 100)).ok() &&
           eventually([&] { return at_accepted.frames() == before_accepted + 1; }) &&
           accepted->send(zmq_frame(2, 100)).ok() &&
           eventually([&] { return at_connected.frames() == before + 1; });
  }

  CountingListener at_connected;
  CountingListener at_accepted;
  std::unique_ptr<Connection> connected;
  std::unique_ptr<Connection> accepted;
};

}  // namespace tidemill::transport
