// SPDX-License-Identifier: Apache-2.0
#include "storage/events/event_file.hpp"

#include <bit>
#include <cstring>
#include <string_view>

#include "base/files/file.hpp"
#include "storage/events/crc32c.hpp"

namespace tidemill::storage {
namespace {

constexpr std::size_t kHeadBytes = 12;
constexpr std::size_t kTailBytes = 4;
// No record written here is longer, so a greater length is damage.
constexpr std::uint64_t kMaxDataBytes = std::uint64_t{4} << 20U;

// The fields of the messages, with their types on the wire.
enum : std::uint8_t {
  kEventWallTime = 1,     // double
  kEventStep = 2,         // int64
  kEventFileVersion = 3,  // string
  kEventSummary = 5,      // message
  kSummaryValue = 1,      // message, repeated
  kValueTag = 1,          // string
  kValueSimpleValue = 2,  // float
};
enum class Wire : std::uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

std::uint32_t masked(std::uint32_t crc) {
  return ((crc >> 15U) | (crc << 17U)) + 0xA282EAD8U;
}

template <class Unsigned>
void append_little_endian(Unsigned value, std::string& out) {
  for (std::size_t i = 0; i < sizeof(value); ++i) {
    out += static_cast<char>(value >> (8 * i));
  }
}

template <class Unsigned>
Unsigned read_little_endian(std::string_view bytes) {
  Unsigned value = 0;
  for (std::size_t i = 0; i < sizeof(value); ++i) {
    value |= static_cast<Unsigned>(static_cast<std::uint8_t>(bytes[i])) << (8 * i);
  }
  return value;
}

void append_varint(std::uint64_t value, std::string& out) {
  for (; value >= 0x80U; value >>= 7U) {
    out += static_cast<char>((value & 0x7FU) | 0x80U);
  }
  out += static_cast<char>(value);
}

void append_key(std::uint8_t field, Wire wire, std::string& out) {
  append_varint((std::uint64_t{field} << 3U) | static_cast<std::uint8_t>(wire), out);
}

void append_bytes(std::uint8_t field, std::string_view bytes, std::string& out) {
  append_key(field, Wire::kBytes, out);
  append_varint(bytes.size(), out);
  out += bytes;
}

std::string event_of(const EventTime& time) {
  std::string event;
  append_key(kEventWallTime, Wire::kFixed64, event);
  append_little_endian(std::bit_cast<std::uint64_t>(time.wall_seconds), event);
  append_key(kEventStep, Wire::kVarint, event);
  append_varint(static_cast<std::uint64_t>(time.step), event);
  return event;
}

std::string framed(std::string_view data) {
  std::string out;
  append_little_endian(std::uint64_t{data.size()}, out);
  append_little_endian(masked(crc32c(out)), out);
  out += data;
  append_little_endian(masked(crc32c(data)), out);
  return out;
}

Result<std::string> read_bytes(const ReadableFile& file, std::uint64_t offset, std::size_t size) {
  std::string bytes(size, '\0');
  TIDEMILL_RETURN_IF_ERROR(file.read_at(offset, std::as_writable_bytes(std::span(bytes))));
  return bytes;
}

// Returns the bytes of the record at `offset`, or 0 if there is none or it is damaged.
Result<std::uint64_t> record_bytes(const ReadableFile& file, std::uint64_t offset) {
  const std::uint64_t rest = file.size_bytes() - offset;
  if (rest < kHeadBytes + kTailBytes) {
    return std::uint64_t{0};
  }
  TIDEMILL_ASSIGN_OR_RETURN(const std::string head, read_bytes(file, offset, kHeadBytes));
  const std::string_view length = std::string_view(head).substr(0, sizeof(std::uint64_t));
  const auto data_bytes = read_little_endian<std::uint64_t>(length);
  const auto length_crc =
      read_little_endian<std::uint32_t>(std::string_view(head).substr(length.size()));
  if (length_crc != masked(crc32c(length)) || data_bytes > kMaxDataBytes ||
      data_bytes > rest - kHeadBytes - kTailBytes) {
    return std::uint64_t{0};
  }
  TIDEMILL_ASSIGN_OR_RETURN(
      const std::string bytes,
      read_bytes(file, offset + kHeadBytes, static_cast<std::size_t>(data_bytes) + kTailBytes));
  const std::string_view data = std::string_view(bytes).substr(0, bytes.size() - kTailBytes);
  const auto data_crc =
      read_little_endian<std::uint32_t>(std::string_view(bytes).substr(data.size()));
  return data_crc == masked(crc32c(data)) ? kHeadBytes + data_bytes + kTailBytes : std::uint64_t{0};
}

}  // namespace

std::string first_event_record(double wall_seconds) {
  std::string event = event_of({wall_seconds, 0});
  append_bytes(kEventFileVersion, "brain.Event:2", event);
  return framed(event);
}

std::string event_record(const EventTime& time, std::span<const EventScalar> scalars) {
  std::string summary;
  for (const EventScalar& scalar : scalars) {
    std::string value;
    append_bytes(kValueTag, scalar.tag, value);
    append_key(kValueSimpleValue, Wire::kFixed32, value);
    append_little_endian(std::bit_cast<std::uint32_t>(scalar.value), value);
    append_bytes(kSummaryValue, value, summary);
  }
  std::string event = event_of(time);
  append_bytes(kEventSummary, summary, event);
  return framed(event);
}

Result<EventExtent> find_event_records(const std::filesystem::path& path,
                                       std::uint64_t max_records) {
  EventExtent found;
  auto file = ReadableFile::open(path);
  if (file.status().code() == Errc::kNotFound) {
    return found;
  }
  TIDEMILL_RETURN_IF_ERROR(file.status());
  while (found.num_records < max_records) {
    TIDEMILL_ASSIGN_OR_RETURN(const std::uint64_t bytes, record_bytes(file.value(), found.bytes));
    if (bytes == 0) {
      break;
    }
    found.bytes += bytes;
    ++found.num_records;
  }
  return found;
}

}  // namespace tidemill::storage
