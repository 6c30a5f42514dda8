// SPDX-License-Identifier: Apache-2.0
// The JSON lines that a reward program reads and writes.
//
// A request is one object a line: the keys of the sample's data row, and over them `id`, `prompt`,
// `response`, `answer`. The answer is one object a line: {"id": …, "reward": …} or
// {"id": …, "error": "…"}, in any order. `id` is a number of the engine's own: it names one
// delivery, so that an answer to an earlier delivery of the same sample is never taken for it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "engines/reward_engine.hpp"

namespace tidemill::engines {

/// Returns the line, with its newline, that asks for a reward. Bytes of the texts that are not
/// UTF-8 become U+FFFD.
/// Errors: `kInvalidArgument` when `request.fields` is not a JSON object, or is nested deeper than
/// 64 levels.
[[nodiscard]] Result<std::string> encode_request(std::uint64_t id, const RewardRequest& request);

/// What a line of the program means.
struct CommandReply {
  enum class Kind {
    kReward,   // `reward` for `id`; finite
    kError,    // the program cannot judge `id`; `text` says why
    kBad,      // meant for `id`, but without a finite reward; `text` says what is wrong
    kGarbage,  // no answer
  };
  Kind kind = Kind::kGarbage;
  std::uint64_t id = 0;
  double reward = 0.0;
  std::string text;
};

/// Reads one line. Never fails: what is no answer is garbage. A line that is not JSON, as
/// {"id": 3, "reward": NaN} is not, still counts as a bad answer when it names an id.
[[nodiscard]] CommandReply parse_reply(std::string_view line);

/// Returns `text` fit for an error message: one line, control characters as '?', at most 200 bytes.
[[nodiscard]] std::string printable(std::string_view text);

}  // namespace tidemill::engines
