// SPDX-License-Identifier: Apache-2.0
// Many lines through a rollout engine at once, with answers in the order of the lines.
#pragma once

#include <cstdint>
#include <functional>

#include "engines/rollout_engine.hpp"
#include "launcher/models/line_reader.hpp"

namespace tidemill::launcher {

/// The most that is in memory between reading a line and answering it. One request may pass
/// `values` when it is alone.
struct RolloutWindow {
  std::size_t requests = 1024;
  /// Tokens of prompts and answers, and numbers of raw logits.
  std::int64_t values = std::int64_t{16} << 20U;
  std::int64_t vocab_size = 1;
};

/// What is done with a line before and after the engine.
struct RolloutWork {
  /// Makes the request of a line; its id becomes the line's index. Errors must name the line.
  std::function<Result<engines::RolloutRequest>(const InputLine&)> request;
  /// Takes the result of the line of this index.
  std::function<Status(std::uint64_t, const engines::RolloutResult&)> answer;
};

/// Reads all of `lines`, keeps `engine` busy with as many as `window` allows, and answers in the
/// order of the lines. While whoever writes the input thinks, what was read is worked on.
///
/// At the first line that has no answer it stops; all lines before it are answered.
/// Errors: of reader, work and engine, naming the line.
[[nodiscard]] Status run_in_order(engines::RolloutEngine& engine, LineReader& lines,
                                  const RolloutWindow& window, const RolloutWork& work);

}  // namespace tidemill::launcher
