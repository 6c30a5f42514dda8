// SPDX-License-Identifier: Apache-2.0
// Event files, which TensorBoard reads: scalars by step.
//
// A file is a sequence of records: the length of the data (8 bytes, little endian), its masked
// CRC-32C, the data, its masked CRC-32C. The data of a record is one protocol buffer `Event`; that
// of the first one names the file's version. Here they are put together by hand: a handful of
// fields, whose numbers will not change.
//
// Source: tensorboard/compat/proto/{event,summary}.proto for the fields; TensorFlow's guide on
// TFRecord for the records and for the mask, `((crc >> 15) | (crc << 17)) + 0xa282ead8`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "base/result.hpp"

namespace tidemill::storage {

/// One point of a curve.
struct EventScalar {
  std::string tag;  // "train/reward_mean"; what precedes the slash groups the curves
  float value = 0.0F;
};

/// When something was, and at which step.
struct EventTime {
  double wall_seconds = 0.0;  // since 1970
  std::int64_t step = 0;
};

/// Returns the record that a file begins with.
[[nodiscard]] std::string first_event_record(double wall_seconds);

/// Returns a record of `scalars`. Tags are together at most 1 MiB.
[[nodiscard]] std::string event_record(const EventTime& time, std::span<const EventScalar> scalars);

/// The whole and undamaged records that a file begins with.
struct EventExtent {
  std::uint64_t num_records = 0;
  std::uint64_t bytes = 0;
};

/// Finds the first records of `path`, `most` of them or fewer if less is there and undamaged. A
/// file that is not there has none. Errors: as `ReadableFile`.
[[nodiscard]] Result<EventExtent> find_event_records(const std::filesystem::path& path,
                                                     std::uint64_t most);

}  // namespace tidemill::storage
