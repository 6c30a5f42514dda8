// SPDX-License-Identifier: Apache-2.0
// Converts each line of `metrics.jsonl` into a record of the TensorBoard event file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace tidemill::actors {

/// The name of the event file in a run directory. TensorBoard recognizes it by "tfevents".
inline constexpr const char* kEventFileName = "events.out.tfevents.tidemill";

/// Returns one record for each of `lines`, which must be whole lines. A record holds a scalar
/// KIND/NAME for each metric, at the step of the line. Metrics that are not finite are left out.
[[nodiscard]] std::string event_records(std::string_view lines, double wall_seconds);

/// Passes the whole lines in the first `bytes` bytes of `path` to `take`, in blocks of about a
/// megabyte. Text after the last newline is left out.
/// Errors: those of `ReadableFile`; `kCorruptData` for a line of more than 64 MiB; those of `take`.
[[nodiscard]] Status for_each_block(const std::filesystem::path& path, std::uint64_t bytes,
                                    const std::function<Status(std::string_view lines)>& take);

}  // namespace tidemill::actors
