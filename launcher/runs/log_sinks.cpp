// SPDX-License-Identifier: Apache-2.0
#include "launcher/runs/log_sinks.hpp"

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <fcntl.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace tidemill::launcher {
namespace {

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarning: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
  }
  return spdlog::level::err;
}

// Writes to an spdlog sink. The logger catches exceptions of the sink, e.g. because stderr is
// closed, so a log that cannot be written does not end a run. By default it would report them in
// lines of its own.
class SpdlogSink final : public LogSink {
public:
  SpdlogSink(spdlog::sink_ptr sink, const std::string& pattern)
      : logger_("tidemill", std::move(sink)) {
    logger_.set_pattern(pattern);
    logger_.set_level(spdlog::level::trace);
    logger_.flush_on(spdlog::level::info);
    logger_.set_error_handler([](const std::string&) {});
  }
  void write(const LogRecord& record) override {
    logger_.log(spdlog_level(record.level), "{}", format_record(record));
  }
  void flush() override { logger_.flush(); }

private:
  spdlog::logger logger_;
};

constexpr std::size_t kMaxKeptLines = 10'000;

// Returns the local time, "YYYY-MM-DD HH:MM:SS.mmm".
std::string time_of_line() {
  using std::chrono::milliseconds;
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto whole = std::chrono::system_clock::from_time_t(seconds);
  const auto rest = std::chrono::duration_cast<milliseconds>(now - whole).count();
  std::tm parts{};
  ::localtime_r(&seconds, &parts);
  std::array<char, 48> text{};
  const std::size_t size = std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S", &parts);
  std::snprintf(text.data() + size, text.size() - size, ".%03d", static_cast<int>(rest));
  return text.data();
}

}  // namespace

std::unique_ptr<LogSink> make_stderr_sink() {
  return std::make_unique<SpdlogSink>(std::make_shared<spdlog::sinks::stderr_color_sink_st>(),
                                      "%^%l%$: %v");
}

RunLogSink::~RunLogSink() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

Status RunLogSink::check() const {
  struct stat info {};
  const std::filesystem::path path = directory_->path() / kRunLogFile;
  if (::fstatat(directory_->descriptor(), kRunLogFile, &info, 0) != 0) {
    return errno == ENOENT ? Status() : system_error(errno, "examine", path);
  }
  return S_ISREG(info.st_mode) ? Status()
                               : invalid_argument(path.string() + ": not a regular file");
}

Status RunLogSink::open() {
  const std::lock_guard lock(mutex_);
  if (descriptor_ < 0) {
    TIDEMILL_ASSIGN_OR_RETURN(descriptor_, open_for_append(*directory_, kRunLogFile));
    for (const std::string& line : std::exchange(kept_, {})) {
      append(line);
    }
  }
  return {};
}

void RunLogSink::write(const LogRecord& record) {
  const std::string line = time_of_line() + ' ' + std::string(log_level_name(record.level)) + ' ' +
                           format_record(record) + '\n';
  const std::lock_guard lock(mutex_);
  if (descriptor_ >= 0) {
    append(line);
  } else if (kept_.size() < kMaxKeptLines) {
    kept_.push_back(line);
  }
}

void RunLogSink::append(const std::string& line) const {
  // One call for each line: a line that is cut short by a full disk is lost.
  [[maybe_unused]] const ssize_t written = ::write(descriptor_, line.data(), line.size());
}

}  // namespace tidemill::launcher
