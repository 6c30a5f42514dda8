// SPDX-License-Identifier: Apache-2.0
#include "actors/tinker/downloads.hpp"

#include <utility>

#include "actors/gateway/file_part.hpp"

namespace tidemill::actors::tinker {

bool Downloads::start(ExchangeId exchange, const std::string& tenant,
                      std::function<Result<OpenedFile>()> open,
                      std::function<void(const Status&)> failed) {
  if (!limit_.fits(tenant, kDownloadPartBytes)) {
    return false;
  }
  limit_.take(tenant, kDownloadPartBytes);
  downloads_[exchange].tenant = tenant;
  const auto opened = std::make_shared<Result<OpenedFile>>(Status(Errc::kInternal, "not opened"));
  run_work_(
      tenant, [open = std::move(open), opened] { *opened = open(); },
      [this, exchange, opened, failed = std::move(failed)] {
        const auto found = downloads_.find(exchange);
        if (found == downloads_.end()) {
          return;  // closed meanwhile
        }
        if (!opened->ok()) {
          forget(exchange);
          failed(opened->status());
          return;
        }
        found->second.file = opened->value();
        const std::uint64_t size = found->second.file->size_bytes();
        http_->start_body(exchange, {200, {{"content-type", "application/octet-stream"}}, ""},
                          size);
        if (size == 0) {
          http_->end(exchange);
          forget(exchange);
        }
      });
  return true;
}

void Downloads::on_sent(ExchangeId exchange) {
  const auto found = downloads_.find(exchange);
  if (found == downloads_.end() || found->second.file == nullptr) {
    return;
  }
  const auto part = std::make_shared<Result<std::string>>(Status(Errc::kInternal, "not read"));
  run_work_(
      found->second.tenant,
      [file = found->second.file, offset = found->second.offset, part] {
        *part = read_file_part(*file, offset);
      },
      [this, exchange, part] { send_part(exchange, std::move(*part)); });
}

void Downloads::send_part(ExchangeId exchange, Result<std::string> part) {
  const auto found = downloads_.find(exchange);
  if (found == downloads_.end()) {
    return;  // closed meanwhile
  }
  if (!part.ok()) {
    http_->end(exchange);  // the body is too short, so the connection is closed
    forget(exchange);
    return;
  }
  found->second.offset += part.value().size();
  const bool is_last = found->second.offset == found->second.file->size_bytes();
  http_->write(exchange, std::move(part).value());
  if (is_last) {
    http_->end(exchange);
    forget(exchange);
  }
}

void Downloads::forget(ExchangeId exchange) {
  if (const auto found = downloads_.find(exchange); found != downloads_.end()) {
    limit_.give_back(found->second.tenant, kDownloadPartBytes);
    downloads_.erase(found);
  }
}

}  // namespace tidemill::actors::tinker
