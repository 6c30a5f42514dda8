// SPDX-License-Identifier: Apache-2.0
// A structured log: a level, a constant message, and values as key=value.
//
// A main program builds the log and passes it down by reference. The sinks that are added to it
// decide where the lines go.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.hpp"
#include "base/result.hpp"

namespace tidemill {

/// The severity of a record, lowest first.
enum class LogLevel : std::uint8_t { kDebug, kInfo, kWarning, kError };

/// Returns "debug", "info", "warning" or "error".
[[nodiscard]] std::string_view log_level_name(LogLevel level) noexcept;
/// Returns the level with the name `name`.
/// Errors: `kInvalidArgument` listing the names.
[[nodiscard]] Result<LogLevel> parse_log_level(std::string_view name);

/// One value that goes with a message. The key must outlive the call that logs it; use a literal.
struct LogField {
  LogField(std::string_view k, std::string_view v) : key(k), value(v) {}
  LogField(std::string_view k, const char* v) : key(k), value(v) {}
  LogField(std::string_view k, bool v) : key(k), value(v ? "true" : "false") {}
  LogField(std::string_view k, double v);
  template <std::integral Integer>
  LogField(std::string_view k, Integer v) : key(k), value(std::to_string(v)) {}

  std::string_view key;
  std::string value;
};

/// One line of a log.
struct LogRecord {
  LogLevel level = LogLevel::kInfo;
  TimePoint time;  // of the log's clock
  std::string_view message;
  std::span<const LogField> fields;
};

/// Returns `message key=value key="a value with spaces"` on one line, whatever the values contain.
[[nodiscard]] std::string format_record(const LogRecord& record);

/// The destination of the records of a log.
class LogSink {
public:
  LogSink() = default;
  LogSink(const LogSink&) = delete;
  LogSink& operator=(const LogSink&) = delete;
  virtual ~LogSink() = default;

  /// Writes one record, whose texts are valid until the call returns.
  /// Threads: the log makes one call at a time.
  virtual void write(const LogRecord& record) = 0;
  /// Makes all written records visible outside the process.
  virtual void flush() = 0;
};

/// Passes records to sinks.
///
/// Threads: safe to call concurrently. Call `add_sink` before the first concurrent use.
class Log {
public:
  /// Creates a log that drops records below `lowest`. Borrows `clock`.
  explicit Log(const Clock& clock, LogLevel lowest = LogLevel::kInfo)
      : clock_(clock), lowest_(lowest) {}
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;
  ~Log();

  void add_sink(std::unique_ptr<LogSink> sink);

  void debug(std::string_view message, std::initializer_list<LogField> fields = {}) {
    write(LogLevel::kDebug, message, fields);
  }
  void info(std::string_view message, std::initializer_list<LogField> fields = {}) {
    write(LogLevel::kInfo, message, fields);
  }
  void warning(std::string_view message, std::initializer_list<LogField> fields = {}) {
    write(LogLevel::kWarning, message, fields);
  }
  void error(std::string_view message, std::initializer_list<LogField> fields = {}) {
    write(LogLevel::kError, message, fields);
  }
  void write(LogLevel level, std::string_view message, std::span<const LogField> fields);
  void write(LogLevel level, std::string_view message, std::initializer_list<LogField> fields) {
    write(level, message, std::span<const LogField>(fields.begin(), fields.size()));
  }
  void flush();

private:
  const Clock& clock_;
  LogLevel lowest_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<LogSink>> sinks_;
};

}  // namespace tidemill
