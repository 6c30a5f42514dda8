// SPDX-License-Identifier: Apache-2.0
// Starting the stream "samples".
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include <caf/fwd.hpp>

#include "actors/keeper/handles.hpp"
#include "actors/stream/handles.hpp"
#include "storage/stream/stream_options.hpp"

namespace tidemill::actors {

/// How the stream "samples" behaves.
struct SampleStreamOptions {
  std::uint32_t group_size = 1;
  std::uint64_t max_staleness = 0;  // versions
  std::uint32_t max_deliveries = 3;
  storage::OnFailedRow on_failed = storage::OnFailedRow::kDropGroup;
  Duration lease = std::chrono::seconds(60);
  std::uint64_t limit_bytes = 0;  // 0: none
  std::uint64_t group_bytes = 0;  // the most one finished group takes
};

/// Returns the declaration of the stream "samples": columns, tasks, limits. Training takes groups
/// in admission order; advantages are computed by group.
[[nodiscard]] storage::StreamOptions sample_stream_options(const SampleStreamOptions& options);

/// What a restarted run must know of the rows that it goes on with.
struct StreamOrigin {
  std::uint64_t next_group = 0;
  std::uint64_t next_draw = 0;
  std::int64_t finished_rows = 0;    // live, response finished
  std::int64_t unfinished_rows = 0;  // live, response not finished
};

/// Returns what `image` says about the rows; zeros for an empty one.
/// Errors: `kCorruptData`.
[[nodiscard]] Result<StreamOrigin> read_stream_origin(const StreamImage& image);

/// Sees every check of the stream's invariants; for simulation.
using StreamInspector = std::function<void(const Status&, const StreamStatus&)>;

/// What the stream is made of.
struct StreamDeps {
  SampleStreamOptions options;
  KeeperActor keeper;
  StreamImage image;  // empty: a fresh run
  /// When set, the invariants are checked after every message: cost grows with the rows.
  StreamInspector inspector;
};

/// Spawns the stream "samples". Contradictions in the image end it, with the failure as its exit
/// reason.
[[nodiscard]] StreamActor spawn_stream(caf::actor_system& system, StreamDeps deps);

}  // namespace tidemill::actors
