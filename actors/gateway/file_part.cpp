// SPDX-License-Identifier: Apache-2.0
#include "actors/gateway/file_part.hpp"

#include <algorithm>
#include <span>

namespace tidemill::actors {

Result<std::string> read_file_part(const ReadableFile& file, std::uint64_t offset) {
  const std::uint64_t left = file.size_bytes() - std::min(offset, file.size_bytes());
  std::string part(std::min<std::uint64_t>(kDownloadPartBytes, left), '\0');
  TIDEMILL_RETURN_IF_ERROR(file.read_at(offset, std::as_writable_bytes(std::span(part))));
  return part;
}

}  // namespace tidemill::actors
