// SPDX-License-Identifier: Apache-2.0
// Converts each line of `metrics.jsonl` into a record of the TensorBoard event file.
#pragma once

#include <string>
#include <string_view>

namespace tidemill::actors {

/// The name of the event file in a run directory. TensorBoard recognizes it by "tfevents".
inline constexpr const char* kEventFileName = "events.out.tfevents.tidemill";

/// Returns one record for each of `lines`, which must be whole lines. A record holds a scalar
/// KIND/NAME for each metric, at the step of the line. Metrics that are not finite are left out.
[[nodiscard]] std::string event_records(std::string_view lines, double wall_seconds);

}  // namespace tidemill::actors
