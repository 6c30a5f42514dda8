// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sample_witness.hpp"

#include <algorithm>
#include <utility>

namespace tidemill::test {
namespace {

using actors::SampleRecord;

std::string name_of(const SampleRecord& sample) {
  return "sample " + std::to_string(sample.id.value);
}

}  // namespace

SampleWitness::SampleWitness(const SimulationOptions& options, Violate violate)
    : options_(options),
      violate_(std::move(violate)),
      reader_(options),
      rewards_(simulated_rewards(options)) {}

void SampleWitness::check_batch(const actors::StepRecord& record) {
  std::map<GroupId, std::vector<const SampleRecord*>> groups;
  for (const SampleRecord& sample : record.samples) {
    check_versions(record, sample);
    check_prompt(sample);
    check_reward(sample);
    groups[sample.group].push_back(&sample);
  }
  for (const auto& [id, group] : groups) {
    check_advantages(group);
  }
}

void SampleWitness::check_versions(const actors::StepRecord& record,
                                   const SampleRecord& sample) const {
  const std::uint64_t batch = record.step - 1;  // the version it was trained at
  for (const engines::VersionSpan& span : sample.versions) {
    const std::uint64_t step = span.version.step;
    if (step > batch) {
      violate_(name_of(sample) + " has a token of a later step");
    } else if (batch - step > options_.max_staleness) {
      violate_(name_of(sample) + " of step " + std::to_string(step) + " was trained at step " +
               std::to_string(batch));
    }
    const std::uint64_t due = batch > options_.max_staleness ? batch - options_.max_staleness : 0;
    if (options_.generation_order == actors::GenerationOrder::kFixed && step != due) {
      violate_("batch " + std::to_string(batch) + " holds a token of step " + std::to_string(step));
    }
  }
}

// Group g has the g-th draw that the data does not skip, whatever has happened since.
void SampleWitness::check_prompt(const SampleRecord& sample) {
  const std::uint64_t group = sample.group.value;
  while (prompts_.size() <= group) {
    const auto next = reader_.read(prompts_.empty() ? 0 : prompts_.back().draw + 1, 1).value();
    if (next.empty()) {
      violate_(name_of(sample) + " is in group " + std::to_string(group) +
               ", but the data has only " + std::to_string(prompts_.size()));
      return;
    }
    prompts_.push_back(next.front());
  }
  if (group != sample.id.value / options_.group_size || sample.prompt != prompts_[group].prompt) {
    violate_(name_of(sample) + " is in group " + std::to_string(group) + ", but has the prompt " +
             sample.prompt);
  }
}

void SampleWitness::check_reward(const SampleRecord& sample) {
  ++rewards_checked_;
  LastReward expected;
  const std::string response = simulated_text(sample.response_ids);
  if (!rewards_->submit({sample.id, "", response, "", ""}, expected).ok() ||
      !rewards_->step({}).ok()) {
    violate_(name_of(sample) + " cannot be scored again");
    return;
  }
  std::map<std::string, double> parts;
  for (std::size_t part = 0; part < expected.last.parts.size(); ++part) {
    parts[kRewardParts[part]] = expected.last.parts[part];
  }
  if (!expected.last.error.empty() || sample.reward != expected.last.reward ||
      sample.reward_parts != parts) {
    violate_(name_of(sample) + " was trained with a reward that is not its own");
  }
}

void SampleWitness::check_advantages(std::vector<const SampleRecord*> group) const {
  std::sort(group.begin(), group.end(),
            [](const SampleRecord* a, const SampleRecord* b) { return a->id < b->id; });
  std::vector<actors::GroupMember> members;
  for (const SampleRecord* sample : group) {
    members.push_back({sample->id, sample->reward, 0, false});
  }
  const auto decision = simulated_decision(members, options_).value();
  for (std::size_t i = 0; i < group.size(); ++i) {
    if (!decision.filtered.empty() || group[i]->advantage != decision.advantages[i]) {
      violate_(name_of(*group[i]) + " was trained with an advantage that is not its own");
    }
  }
}

}  // namespace tidemill::test
