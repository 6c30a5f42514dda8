// SPDX-License-Identifier: Apache-2.0
#include "launcher/runs/log_sinks.hpp"

#include <spdlog/logger.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>

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

// Writes to an spdlog sink. The logger catches exceptions of the sink, e.g. because the disk is
// full, and reports them on stderr, so a log that cannot be written does not end a run.
class SpdlogSink final : public LogSink {
public:
  SpdlogSink(spdlog::sink_ptr sink, const std::string& pattern)
      : logger_("tidemill", std::move(sink)) {
    logger_.set_pattern(pattern);
    logger_.set_level(spdlog::level::trace);
    logger_.flush_on(spdlog::level::info);
  }
  void write(const LogRecord& record) override {
    logger_.log(spdlog_level(record.level), "{}", format_record(record));
  }
  void flush() override { logger_.flush(); }

private:
  spdlog::logger logger_;
};

}  // namespace

std::unique_ptr<LogSink> make_stderr_sink() {
  return std::make_unique<SpdlogSink>(std::make_shared<spdlog::sinks::stderr_color_sink_st>(),
                                      "%^%l%$: %v");
}

Result<std::unique_ptr<LogSink>> make_file_sink(const std::string& path) {
  try {
    std::unique_ptr<LogSink> sink = std::make_unique<SpdlogSink>(
        std::make_shared<spdlog::sinks::basic_file_sink_st>(path), "%Y-%m-%d %H:%M:%S.%e %l %v");
    return sink;
  } catch (const spdlog::spdlog_ex&) {
    return Status(Errc::kUnavailable, path + ": cannot be opened for the log");
  }
}

}  // namespace tidemill::launcher
