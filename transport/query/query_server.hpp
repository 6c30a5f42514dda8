// SPDX-License-Identifier: Apache-2.0
// Short questions to a process of this host, each with one answer, over a Unix socket.
//
// For command-line tools, not for the processes of a run: each query has a connection of its own,
// and the server answers one query after the other. A query and an answer are one packet each.
#pragma once

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.hpp"
#include "base/result.hpp"
#include "base/status.hpp"

namespace tidemill::transport {

/// The largest query and the largest answer. Units: bytes.
inline constexpr std::size_t kMaxQueryBytes = std::size_t{64} << 10U;
inline constexpr std::size_t kMaxAnswerBytes = std::size_t{128} << 10U;

/// How long the server waits for the query of a connection.
inline constexpr Duration kMaxQueryWait = std::chrono::seconds(1);

/// Answers queries from a thread of its own, until it is destroyed.
class QueryServer {
public:
  /// Returns the answer to a query, which may contain anything. Called by the thread of the server,
  /// one call at a time. A longer answer than `kMaxAnswerBytes` is cut off.
  using Answer = std::function<std::string(const std::string& query)>;

  /// Gets the reason each time a connection cannot be accepted for lack of descriptors or memory.
  /// It is tried again. Called by the thread of the server; must not block.
  using OnTrouble = std::function<void(const Status& why)>;

  /// Listens at a path of any length. Only processes of this user get answers. A socket that a
  /// killed process has left there is replaced. `on_trouble` may be empty.
  /// Errors: `kInvalidArgument` if the directory is none; `kNotFound` without the directory;
  /// `kResourceExhausted`; `kUnavailable`.
  [[nodiscard]] static Result<std::unique_ptr<QueryServer>> listen(
      const std::filesystem::path& path, Answer answer, OnTrouble on_trouble = {});
  QueryServer(const QueryServer&) = delete;
  QueryServer& operator=(const QueryServer&) = delete;
  /// Removes the socket. Waits for the query in progress.
  ~QueryServer();

private:
  class Loop;
  explicit QueryServer(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
};

/// Sends a query to the server at `path`, and returns its answer.
/// Errors: `kUnavailable` if no server listens there; `kTimeout` if it does not answer within
/// `max_wait`, after which it does not answer the query any more; `kInvalidArgument` for a query
/// that is empty or too long.
[[nodiscard]] Result<std::string> send_query(const std::filesystem::path& path,
                                             const std::string& query, Duration max_wait);

}  // namespace tidemill::transport
