// SPDX-License-Identifier: Apache-2.0
#include "workflows/reward_options.hpp"

namespace tidemill::workflows {

void describe(EnumSchema<OnFailedSample>& e) {
  e.name("drop_group", OnFailedSample::kDropGroup, "The whole group is left out.")
      .name("shrink", OnFailedSample::kShrink, "The rest of the group goes on without it.");
}

void describe(Schema<ExactMatchReward>& /*s*/) {}

void describe(Schema<NumberReward>& s) {
  s.field("tolerance", &NumberReward::tolerance, "Largest difference that still counts as equal.")
      .at_least(0);
}

void describe(Schema<RegexReward>& s) {
  s.field("pattern", &RegexReward::pattern,
          "A PCRE2 pattern. A group named answer must capture the reference answer.")
      .required();
  s.check("pattern", [](const RegexReward& o) { return o.pattern.empty() ? "is empty" : ""; });
}

void describe(Schema<CommandReward>& s) {
  s.field("command", &CommandReward::command,
          "Program and arguments of a long-lived process that speaks JSON lines.")
      .required();
  s.field("timeout_ms", &CommandReward::timeout_ms, "Time limit of one sample.")
      .range(1, 86'400'000)
      .unit("ms");
  s.check("command", [](const CommandReward& o) {
    return o.command.empty() || o.command.front().empty() ? "names no program" : "";
  });
}

void describe(Schema<RewardOptions>& s) {
  s.one_of("kind", &RewardOptions::scoring, "How an answer is judged.")
      .kind<ExactMatchReward>("exact_match", "1 if the answer is the reference answer, else 0.")
      .kind<NumberReward>("number", "1 if the answer's last number is the reference, else 0.")
      .kind<RegexReward>("regex", "1 if the answer matches a pattern, else 0.")
      .kind<CommandReward>("command", "What a program of yours says.");
  s.field("on_failed", &RewardOptions::on_failed,
          "What becomes of a group when a sample could not be scored after all deliveries.");
}

}  // namespace tidemill::workflows
