// SPDX-License-Identifier: Apache-2.0
// Sends files of checkpoints. Private to this folder.
//
// A file is sent in parts. The next part is read once the HTTP server has sent the one before, so
// that a download holds one part, whatever the size of its file and however slow its client.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "actors/gateway/fair_limit.hpp"
#include "actors/gateway/http/http_server.hpp"
#include "base/files/file.hpp"
#include "base/result.hpp"

namespace tidemill::actors::tinker {

using OpenedFile = std::shared_ptr<const ReadableFile>;

/// The downloads of an actor. Threads: the actor's.
class Downloads {
public:
  /// Runs `work` at a port, in turns of tenants, and then `done` in the actor.
  using RunWork = std::function<void(const std::string& tenant, std::function<void()> work,
                                     std::function<void()> done)>;

  /// Borrows `http`. Tenants share `limit`, of which each download takes the bytes of one part.
  Downloads(HttpServer& http, RunWork run_work, FairLimit limit)
      : http_(&http), run_work_(std::move(run_work)), limit_(std::move(limit)) {}

  /// Sends the file that `open` returns to `exchange`. `open` is called at the port. If it fails,
  /// calls `failed`, which responds. Returns false, and does nothing, if the limit is reached.
  [[nodiscard]] bool start(ExchangeId exchange, const std::string& tenant,
                           std::function<Result<OpenedFile>()> open,
                           std::function<void(const Status&)> failed);
  /// Reports that all that was written to `exchange` has been sent.
  void on_sent(ExchangeId exchange);
  /// Ends the download of an exchange whose connection has been closed.
  void forget(ExchangeId exchange);

private:
  struct Download {
    std::string tenant;
    OpenedFile file;  // null until it is open
    std::uint64_t offset = 0;
  };
  void send_part(ExchangeId exchange, Result<std::string> part);

  HttpServer* http_;
  RunWork run_work_;
  FairLimit limit_;
  std::map<ExchangeId, Download> downloads_;
};

}  // namespace tidemill::actors::tinker
