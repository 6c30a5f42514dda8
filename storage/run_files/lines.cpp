// SPDX-License-Identifier: Apache-2.0
#include "storage/run_files/lines.hpp"

#include <algorithm>
#include <span>
#include <string>

#include "base/files/file.hpp"

namespace tidemill::storage {
namespace {

constexpr std::size_t kBlockBytes = std::size_t{1} << 20U;
constexpr std::size_t kMaxLineBytes = std::size_t{64} << 20U;

}  // namespace

Status for_each_block(const std::filesystem::path& path, std::uint64_t bytes,
                      const std::function<Status(std::string_view lines)>& take) {
  TIDEMILL_ASSIGN_OR_RETURN(const ReadableFile file, ReadableFile::open(path));
  std::string block;
  for (std::uint64_t offset = 0; offset < bytes;) {
    const std::size_t begun = block.size();
    block.resize(begun +
                 static_cast<std::size_t>(std::min<std::uint64_t>(kBlockBytes, bytes - offset)));
    const auto fresh = std::as_writable_bytes(std::span(block)).subspan(begun);
    TIDEMILL_RETURN_IF_ERROR(file.read_at(offset, fresh));
    offset += fresh.size();
    const std::size_t whole = block.rfind('\n') + 1;  // 0 if there is no newline
    TIDEMILL_RETURN_IF_ERROR(take(std::string_view(block).substr(0, whole)));
    block.erase(0, whole);
    if (block.size() > kMaxLineBytes) {
      return corrupt_data(path.string() + ": holds a line of more than 64 MiB");
    }
  }
  return {};
}

Status for_each_line(const std::filesystem::path& path, std::uint64_t bytes,
                     const std::function<Status(std::string_view line)>& take) {
  return for_each_block(path, bytes, [&take](std::string_view lines) -> Status {
    while (!lines.empty()) {
      const std::size_t end = lines.find('\n');
      TIDEMILL_RETURN_IF_ERROR(take(lines.substr(0, end)));
      lines.remove_prefix(end + 1);
    }
    return {};
  });
}

}  // namespace tidemill::storage
