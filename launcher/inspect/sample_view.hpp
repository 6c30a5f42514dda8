// SPDX-License-Identifier: Apache-2.0
// Shows a sample: prompt, response, reward, and the log-probability of each token.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "launcher/terminal.hpp"
#include "storage/run_files/sample_line.hpp"

namespace tidemill::launcher {

/// Returns the bytes that a token adds to the text, or an empty string if no token has the id.
using TokenBytes = std::function<std::string(std::int32_t id)>;

/// Draws a sample. With colors, the background of a token shows its log-probability; without
/// colors, the number follows the token. Tokens that form a character together are drawn as one,
/// with the lowest of their log-probabilities. If `bytes` is empty, tokens are shown as their ids.
[[nodiscard]] std::string draw_sample(const storage::SampleLine& sample, const Terminal& terminal,
                                      const TokenBytes& bytes);

/// Returns a line that shows which color stands for which log-probability, or an empty string
/// without colors.
[[nodiscard]] std::string draw_legend(const Terminal& terminal);

}  // namespace tidemill::launcher
