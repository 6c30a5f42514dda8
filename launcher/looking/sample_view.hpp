// SPDX-License-Identifier: Apache-2.0
// A rollout as people look at it: prompt, answer, reward, and how sure the model was of each token.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "launcher/looking/sample_file.hpp"
#include "launcher/terminal.hpp"

namespace tidemill::launcher {

/// Returns the bytes that a token adds to the text; empty if no token has the id.
using TokenBytes = std::function<std::string(std::int32_t id)>;

/// Draws a sample. With colours each token stands on the colour of its log-probability; without,
/// the number follows it. Tokens that make a character together are drawn as one, with the lowest
/// log-probability of theirs. Without `bytes` the ids stand for the tokens.
[[nodiscard]] std::string draw_sample(const RecordedSample& sample, const Terminal& terminal,
                                      const TokenBytes& bytes);

/// Returns a line that says which colour is which log-probability; empty without colours.
[[nodiscard]] std::string draw_legend(const Terminal& terminal);

}  // namespace tidemill::launcher
