// SPDX-License-Identifier: Apache-2.0
// The JSON lines that a reward program reads and writes.
//
// A request is one JSON object on one line. It holds the keys of the sample's data row, and the
// keys `id`, `prompt`, `response` and `answer`, which replace keys of the row with the same name. A
// reply is one object on one line, {"id": …, "reward": …} or {"id": …, "error": "…"}. Replies may
// come in any order. `id` is a number that the engine assigns to one delivery of a sample, so that
// a reply to an earlier delivery of the same sample is never mistaken for a reply to this one. A
// request that is sent again because the program was restarted keeps its number. A reply may write
// it as a fraction or with an exponent, such as 16.0 or 1.6e1.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "engines/reward_engine.hpp"

namespace tidemill::engines {

/// Returns the line that requests a reward, including its newline. Bytes of the texts that are not
/// valid UTF-8 become U+FFFD.
/// Errors: `kInvalidArgument` if `request.fields` is not a JSON object, or is nested deeper than 64
/// levels.
[[nodiscard]] Result<std::string> encode_request(std::uint64_t id, const RewardRequest& request);

/// A parsed line of the program.
struct CommandReply {
  enum class Kind {
    kReward,   // `reward` is the reward of `id`
    kError,    // the program cannot score `id`; `text` says why
    kBad,      // a reply to `id` without a valid reward (`is_reward`); `text` says what is wrong
    kGarbage,  // not a reply; `text` is the line in printable form
  };
  Kind kind = Kind::kGarbage;
  std::uint64_t id = 0;
  double reward = 0.0;
  std::string text;
};

/// Parses one line. Never fails: a line that is not a reply is `kGarbage`. A line that starts with
/// '{' and names an id, but is not valid JSON, such as {"id": 3, "reward": NaN}, is `kBad`.
[[nodiscard]] CommandReply parse_reply(std::string_view line);

/// Returns `text` in a form fit for an error message: control characters replaced by '?', and
/// shortened to 200 bytes and "..." if it is longer.
[[nodiscard]] std::string printable(std::string_view text);

}  // namespace tidemill::engines
