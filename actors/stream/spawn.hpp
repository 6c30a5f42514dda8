// SPDX-License-Identifier: Apache-2.0
// Spawns the stream "samples".
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include <caf/fwd.hpp>

#include "actors/keeper/handles.hpp"
#include "actors/stream/handles.hpp"
#include "storage/stream/stream_options.hpp"

namespace tidemill::actors {

/// Options of the stream "samples".
struct SampleStreamOptions {
  std::uint32_t incarnation = 0;  // of the run
  std::uint32_t group_size = 1;
  std::uint64_t max_staleness = 0;  // versions
  std::uint32_t max_deliveries = 3;
  storage::OnFailedRow on_failed = storage::OnFailedRow::kDropGroup;
  Duration lease = std::chrono::seconds(60);
  std::uint64_t limit_bytes = 0;  // 0: none
  std::uint64_t group_bytes = 0;  // upper bound for one finished group
};

/// Returns the declaration of the stream "samples": columns, tasks, limits. The tasks `kAdvantage`
/// and `kTrain` take whole groups, and `kTrain` takes them in admission order.
[[nodiscard]] storage::StreamOptions sample_stream_options(const SampleStreamOptions& options);

/// Where a resumed run continues.
struct StreamOrigin {
  std::uint64_t next_group = 0;
  std::uint64_t next_draw = 0;
  std::int64_t finished_rows = 0;    // live, response finished
  std::int64_t unfinished_rows = 0;  // live, response not finished
};

/// The rows of a resumed run, and where the run continues.
struct RestoredStream {
  StreamOrigin origin;
  storage::StreamSnapshot snapshot;
};

/// Decodes the image of a commit; returns null for an empty image. Copies the bytes of all cells,
/// so call it at a port. Errors: `kCorruptData`.
[[nodiscard]] Result<std::shared_ptr<const RestoredStream>> decode_stream_image(
    const StreamImage& image);

/// Receives the result of every check of the stream's invariants, for simulation.
using StreamInspector = std::function<void(const Status&, const StreamStatus&)>;

/// Dependencies of the stream.
struct StreamDeps {
  SampleStreamOptions options;
  KeeperActor keeper;
  std::shared_ptr<const RestoredStream> restored;  // null: a new run
  /// If set, the stream checks its invariants after every message. The cost grows with the rows.
  StreamInspector inspector;
};

/// Spawns the stream "samples". It exits with the failure as its exit reason if the restored rows
/// contradict each other or the options.
[[nodiscard]] StreamActor spawn_stream(caf::actor_system& system, StreamDeps deps);

}  // namespace tidemill::actors
