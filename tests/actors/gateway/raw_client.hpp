// SPDX-License-Identifier: Apache-2.0
// A TCP client that sends bytes as they are, for tests of the HTTP server.
#pragma once

#include <arpa/inet.h>
#include <cerrno>
#include <chrono>
#include <netinet/in.h>
#include <poll.h>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <utility>

#include <gtest/gtest.h>

#include "base/files/unique_fd.hpp"

namespace tidemill::test {

/// A connection to a port of this host.
class RawClient {
public:
  explicit RawClient(std::uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ =
        ::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  }

  [[nodiscard]] bool connected() const { return connected_; }

  /// Sends all of `bytes`. Returns false if the server has closed the connection.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent < 0) {
        return false;
      }
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }

  /// Reads until `end` has arrived, the server closes the connection, or `limit` has passed.
  /// Returns what has arrived.
  std::string read_until(std::string_view end,
                         std::chrono::milliseconds limit = std::chrono::seconds(20)) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    while (received_.find(end) == std::string::npos && !closed_) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          deadline - std::chrono::steady_clock::now());
      pollfd waited{fd_.get(), POLLIN, 0};
      if (left.count() <= 0 || ::poll(&waited, 1, static_cast<int>(left.count())) <= 0) {
        break;
      }
      char bytes[16384];
      const ssize_t size = ::recv(fd_.get(), bytes, sizeof(bytes), 0);
      if (size <= 0) {
        closed_ = true;
      } else {
        received_.append(bytes, static_cast<std::size_t>(size));
      }
    }
    const std::size_t found = received_.find(end);
    const std::size_t size = found == std::string::npos ? received_.size() : found + end.size();
    std::string text = received_.substr(0, size);
    received_.erase(0, size);
    return text;
  }

  /// Reads until the server closes the connection.
  std::string read_all(std::chrono::milliseconds limit = std::chrono::seconds(20)) {
    return read_until("\x01 never sent", limit);
  }
  /// Returns whether the server has closed the connection.
  [[nodiscard]] bool closed() const { return closed_; }

  /// Sends no more.
  void shut_down() { ::shutdown(fd_.get(), SHUT_WR); }
  /// Ends a `send` of another thread, too.
  void shut_down_both() { ::shutdown(fd_.get(), SHUT_RDWR); }
  void close() { fd_ = UniqueFd(); }

private:
  UniqueFd fd_;
  bool connected_ = false;
  bool closed_ = false;
  std::string received_;
};

}  // namespace tidemill::test
