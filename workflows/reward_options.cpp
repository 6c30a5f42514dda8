// SPDX-License-Identifier: Apache-2.0
#include "workflows/reward_options.hpp"

namespace tidemill::workflows {
namespace {

bool is_reward_name(std::string_view name) {
  return !name.empty() && name.size() <= 64 &&
         name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == std::string_view::npos;
}

}  // namespace

std::string reward_name(const RewardOptions& options) {
  return options.name.value_or(options.scoring.name());
}

void describe(Schema<ExactMatchReward>& /*s*/) {}

void describe(Schema<NumberReward>& s) {
  s.field("tolerance", &NumberReward::tolerance,
          "Largest absolute difference that still counts as equal.")
      .at_least(0);
}

void describe(Schema<RegexReward>& s) {
  s.field(
       "pattern", &RegexReward::pattern,
       "A PCRE2 pattern that must match somewhere in the response. If it has a group named answer, "
       "that group must capture the reference answer.")
      .required();
  s.check("pattern", [](const RegexReward& o) { return o.pattern.empty() ? "is empty" : ""; });
}

void describe(Schema<CommandReward>& s) {
  s.field(
       "command", &CommandReward::command,
       "Program and arguments of a long-lived process that reads requests from standard input and "
       "writes rewards to standard output, as JSON lines.")
      .required();
  s.field("timeout_ms", &CommandReward::timeout_ms,
          "Time limit for one sample; a program that exceeds it is killed and restarted. The first "
          "reply after a start may take ten times as long, but at most a minute or timeout_ms, "
          "whichever is longer.")
      .range(1, 86'400'000)
      .unit("ms");
  s.check("command", [](const CommandReward& o) {
    return o.command.empty() || o.command.front().empty() ? "names no program" : "";
  });
}

void describe(Schema<RewardOptions>& s) {
  s.one_of("kind", &RewardOptions::scoring, "How a response is scored.")
      .kind<ExactMatchReward>("exact_match",
                              "1 if the response equals the reference answer, both trimmed; else "
                              "0.")
      .kind<NumberReward>(
          "number",
          "1 if the last number of the response equals that of the reference answer; "
          "else 0.")
      .kind<RegexReward>("regex", "1 if the response matches a pattern; else 0.")
      .kind<CommandReward>("command", "The value that your own program returns.");
  s.field("name", &RewardOptions::name,
          "Name of the reward in the records, by default its kind. Names must differ.");
  s.field("weight", &RewardOptions::weight, "Weight of this reward in the sum.").range(-1e9, 1e9);
  s.check("name", [](const RewardOptions& o) {
    return o.name && !is_reward_name(*o.name) ? "must be 1 to 64 characters of a-z, 0-9 and _" : "";
  });
}

}  // namespace tidemill::workflows
