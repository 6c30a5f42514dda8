// SPDX-License-Identifier: Apache-2.0
#include "base/log.hpp"

#include <algorithm>
#include <array>
#include <charconv>

namespace tidemill {
namespace {

constexpr std::array<std::string_view, 4> kLevelNames{"debug", "info", "warning", "error"};

void append_value(std::string_view value, std::string& out) {
  const bool bare = !value.empty() && std::all_of(value.begin(), value.end(), [](char c) {
    return static_cast<unsigned char>(c) > 0x20U && c != '"' && c != '=' && c != 0x7F;
  });
  if (bare) {
    out += value;
    return;
  }
  out += '"';
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else {
      out += byte < 0x20U || byte == 0x7FU ? '?' : c;
    }
  }
  out += '"';
}

}  // namespace

std::string_view log_level_name(LogLevel level) noexcept {
  return kLevelNames.at(static_cast<std::size_t>(level));
}

Result<LogLevel> parse_log_level(std::string_view name) {
  const auto* const hit = std::find(kLevelNames.begin(), kLevelNames.end(), name);
  if (hit == kLevelNames.end()) {
    return invalid_argument("log level needs one of: debug, info, warning, error");
  }
  return static_cast<LogLevel>(hit - kLevelNames.begin());
}

LogField::LogField(std::string_view k, double v) : key(k) {
  std::array<char, 32> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), v);
  value.assign(buffer.data(), end.ptr);
}

std::string format_record(const LogRecord& record) {
  std::string out;
  // A message is a literal or, at times, the text of an error. It stays on one line in both cases.
  for (const char c : record.message) {
    out += static_cast<unsigned char>(c) < 0x20U ? ' ' : c;
  }
  for (const LogField& field : record.fields) {
    out += ' ';
    out += field.key;
    out += '=';
    append_value(field.value, out);
  }
  return out;
}

Log::~Log() {
  flush();
}

void Log::add_sink(std::unique_ptr<LogSink> sink) {
  const std::lock_guard lock(mutex_);
  sinks_.push_back(std::move(sink));
}

void Log::write(LogLevel level, std::string_view message, std::span<const LogField> fields) {
  if (level < lowest_) {
    return;
  }
  const LogRecord record{level, clock_.now(), message, fields};
  const std::lock_guard lock(mutex_);
  for (const auto& sink : sinks_) {
    sink->write(record);
  }
}

void Log::flush() {
  const std::lock_guard lock(mutex_);
  for (const auto& sink : sinks_) {
    sink->flush();
  }
}

}  // namespace tidemill
