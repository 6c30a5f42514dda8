// SPDX-License-Identifier: Apache-2.0
// Event files, which TensorBoard reads: scalars by step.
//
// A file is a sequence of records. A record is the length of its data (8 bytes, little endian), the
// masked CRC-32C of the length, the data, and the masked CRC-32C of the data. The data is one
// protocol buffer `Event`; the first one names the file's version. The messages are encoded by
// hand, because they need only a few fields, whose numbers do not change.
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
  std::string tag;  // "train/reward_mean"; the part before the slash groups the curves
  float value = 0.0F;
};

/// The time and the step of an event.
struct EventTime {
  double wall_seconds = 0.0;  // since 1970
  std::int64_t step = 0;
};

/// Returns the first record of a file.
[[nodiscard]] std::string first_event_record(double wall_seconds);

/// Returns a record of `scalars`. All tags together may take at most 1 MiB.
[[nodiscard]] std::string event_record(const EventTime& time, std::span<const EventScalar> scalars);

/// The intact records at the start of a file.
struct EventExtent {
  std::uint64_t num_records = 0;
  std::uint64_t bytes = 0;
};

/// Finds the intact records at the start of `path`, but at most `max_records`. A missing file has
/// none. Errors: as `ReadableFile`.
[[nodiscard]] Result<EventExtent> find_event_records(const std::filesystem::path& path,
                                                     std::uint64_t max_records);

}  // namespace tidemill::storage
