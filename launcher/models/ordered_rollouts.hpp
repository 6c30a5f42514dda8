// SPDX-License-Identifier: Apache-2.0
// Generates for many input lines at once, and returns the results in the order of the lines.
#pragma once

#include <cstdint>
#include <functional>

#include "engines/rollout_engine.hpp"
#include "launcher/models/line_reader.hpp"

namespace tidemill::launcher {

/// Limits on the lines that have been read but not finished. Another line is read only while both
/// counts are below their limits, so the request of the last line may exceed `values`.
struct RolloutWindow {
  std::size_t requests = 1024;
  /// Numbers held for these lines: the tokens of prompts and of responses of full length, plus
  /// `vocab_size` logits for each prompt token if the request asks for them.
  std::int64_t values = std::int64_t{16} << 20U;
  std::int64_t vocab_size = 1;
};

/// What happens to a line before and after generation.
struct RolloutWork {
  /// Makes the request of a line. The id that it sets is replaced by the index of the line. Errors
  /// must name the line.
  std::function<Result<engines::RolloutRequest>(const InputLine&)> request;
  /// Processes the result of the line with this index. Called in the order of the lines.
  std::function<Status(std::uint64_t, const engines::RolloutResult&)> finish;
};

/// Reads all of `lines`, runs as many of them at once as `window` allows, and finishes them in
/// order. While a line that was read is unfinished, it does not wait for further input.
///
/// Stops at the first line that fails, after finishing all lines before it. Stops at once if a step
/// of the engine fails.
/// Errors, naming the line: those of the reader, of `work` and of requests; without a line: those
/// of `RolloutEngine::step`.
[[nodiscard]] Status run_in_order(engines::RolloutEngine& engine, LineReader& lines,
                                  const RolloutWindow& window, const RolloutWork& work);

}  // namespace tidemill::launcher
