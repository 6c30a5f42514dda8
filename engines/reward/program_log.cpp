// SPDX-License-Identifier: Apache-2.0
#include "engines/reward/program_log.hpp"

#include <cerrno>
#include <fcntl.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include "engines/reward/command_protocol.hpp"
#include "engines/reward/rules.hpp"

namespace tidemill::engines {
namespace {

constexpr std::uint64_t kMaxFileBytes = 64ULL << 20U;
constexpr std::size_t kTailBytes = 4096;

}  // namespace

Result<ProgramLog> ProgramLog::open(const std::string& path) {
  if (path.empty()) {
    return ProgramLog(UniqueFd());
  }
  // O_NONBLOCK: opening a pipe must not wait for a reader.
  UniqueFd file(::open(path.c_str(),
                       O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0644));
  struct stat info {};
  if ((!file.is_open() && errno == ENXIO) ||
      (file.is_open() && ::fstat(file.get(), &info) == 0 && !S_ISREG(info.st_mode))) {
    return invalid_argument("stderr_path: `" + path + "` is not a regular file");
  }
  if (!file.is_open()) {
    return invalid_argument("stderr_path: cannot open `" + path +
                            "`: " + std::error_code(errno, std::generic_category()).message());
  }
  return ProgramLog(std::move(file));
}

void ProgramLog::append(std::string_view bytes) {
  tail_.append(bytes);
  if (tail_.size() > 2 * kTailBytes) {
    tail_.erase(0, tail_.size() - kTailBytes);
  }
  written_ += bytes.size();
  if (written_ > kMaxFileBytes) {
    file_.reset();
  }
  while (file_.is_open() && !bytes.empty()) {
    const ssize_t count = ::write(file_.get(), bytes.data(), bytes.size());
    if (count > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno != EINTR) {
      file_.reset();
    }
  }
}

std::string ProgramLog::last_line() const {
  const std::string_view text = trim(tail_);
  const std::size_t newline = text.rfind('\n');
  return printable(trim(newline == std::string_view::npos ? text : text.substr(newline + 1)));
}

}  // namespace tidemill::engines
