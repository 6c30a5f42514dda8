// SPDX-License-Identifier: Apache-2.0
// Processes many input lines with a rollout engine at once, with results in the order of the lines.
#pragma once

#include <cstdint>
#include <functional>

#include "engines/rollout_engine.hpp"
#include "launcher/models/line_reader.hpp"

namespace tidemill::launcher {

/// Limits on the lines that have been read but not finished. A single request may exceed `values`
/// if it is the only one.
struct RolloutWindow {
  std::size_t requests = 1024;
  /// Prompt and response tokens, plus values of raw logits.
  std::int64_t values = std::int64_t{16} << 20U;
  std::int64_t vocab_size = 1;
};

/// How to process a line before and after the engine.
struct RolloutWork {
  /// Makes the request of a line. Its id is overwritten with the index of the line. Errors must
  /// name the line.
  std::function<Result<engines::RolloutRequest>(const InputLine&)> request;
  /// Takes the result of the line with this index.
  std::function<Status(std::uint64_t, const engines::RolloutResult&)> finish;
};

/// Reads `lines` to their end, runs as many of them at once as `window` allows, and finishes them
/// in the order of the lines. Does not wait for further input while lines that were read are
/// unfinished.
///
/// Stops at the first line that fails, after finishing all lines before it.
/// Errors: those of the reader, `work` and the engine, naming the line.
[[nodiscard]] Status run_in_order(engines::RolloutEngine& engine, LineReader& lines,
                                  const RolloutWindow& window, const RolloutWork& work);

}  // namespace tidemill::launcher
