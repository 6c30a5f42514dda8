// SPDX-License-Identifier: Apache-2.0
// The lines of `metrics.jsonl` as records of the event file beside it, one for one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace tidemill::actors {

/// The event file of a run directory; TensorBoard knows it by the word in the middle.
inline constexpr const char* kEventFileName = "events.out.tfevents.tidemill";

/// Returns one record for each of `lines`, which are whole: curves KIND/FIGURE at the line's step.
/// A figure that is not finite is left out.
[[nodiscard]] std::string event_records(std::string_view lines, double wall_seconds);

/// Hands the whole lines in the first `bytes` of `path` to `take`, about a megabyte at a time; what
/// follows the last newline is left out.
/// Errors: as `ReadableFile`; `kCorruptData` for a line of more than 64 MiB; those of `take`.
[[nodiscard]] Status for_each_block(const std::filesystem::path& path, std::uint64_t bytes,
                                    const std::function<Status(std::string_view lines)>& take);

}  // namespace tidemill::actors
