// SPDX-License-Identifier: Apache-2.0
#include "workflows/rl_options.hpp"

#include <algorithm>
#include <set>

#include "engines/sampling/sampling_options.hpp"

namespace tidemill::workflows {
namespace {

bool has_empty(const std::vector<std::string>& texts) {
  return std::count(texts.begin(), texts.end(), "") > 0;
}

std::string too_cold(double temperature) {
  return temperature > 0 && temperature < engines::kLeastTemperature ? "must be 0 or at least 0.001"
                                                                     : "";
}

std::string unfit_list(const std::vector<RewardOptions>& rewards) {
  std::set<std::string> names;
  for (const RewardOptions& reward : rewards) {
    if (const std::string name = reward_name(reward); !names.insert(name).second) {
      return "two rewards are called " + name + "; give one of them a name";
    }
  }
  return rewards.empty() ? "needs at least one" : "";
}

// Rules over several sections. Those that refuse come first.
void add_rules(Schema<RlOptions>& s) {
  s.check("reward", [](const RlOptions& o) { return unfit_list(o.reward); });
  s.check("data.epochs", [](const RlOptions& o) {
    return o.data.epochs && o.train.common.steps ? "stands beside train.steps; give one of them"
                                                 : "";
  });
  s.check("train.warmup_steps", [](const RlOptions& o) {
    const std::int64_t updates = std::int64_t{o.train.minibatches} * o.train.epochs;
    return o.train.common.steps && o.train.common.warmup_steps > *o.train.common.steps * updates
               ? "is more than the run's optimizer steps"
               : "";
  });
  s.check("rollout.group_size", [](const RlOptions& o) -> std::string {
    return o.rollout.group_size == 1
               ? "needs at least 2: " + o.algorithm.name + " compares the samples of a group"
               : "";
  });
  s.check("algorithm.scale", [](const RlOptions& o) {
    return o.algorithm.baseline == Baseline::kLeaveOneOut &&
                   o.algorithm.scale != AdvantageScale::kNone
               ? "goes with baseline: group_mean; leave_one_out divides by nothing"
               : "";
  });
  s.check("algorithm.overlong.buffer", [](const RlOptions& o) {
    return o.algorithm.overlong && o.algorithm.overlong->buffer > o.rollout.max_new_tokens
               ? "is more than rollout.max_new_tokens"
               : "";
  });
  s.check("eval.every_steps", [](const RlOptions& o) {
    return o.eval.common.every_steps > 0 && o.data.eval.empty() ? "needs data.eval" : "";
  });
  s.warn("rollout.temperature", [](const RlOptions& o) {
    return o.rollout.temperature == 0 ? "is 0: the samples of a group are all equal" : "";
  });
  const auto warn_of_filter = [&s](const char* key, bool (*used)(const RolloutOptions&)) {
    s.warn(std::string("rollout.") + key, [used](const RlOptions& o) {
      return used(o.rollout)
                 ? "changes what is drawn but not the log-probabilities that training sees"
                 : "";
    });
  };
  warn_of_filter("top_k", [](const RolloutOptions& r) { return r.top_k != 0; });
  warn_of_filter("top_p", [](const RolloutOptions& r) { return r.top_p != 1; });
  warn_of_filter("min_p", [](const RolloutOptions& r) { return r.min_p != 0; });
  warn_of_filter("repetition_penalty",
                 [](const RolloutOptions& r) { return r.repetition_penalty != 1; });
  warn_of_filter("frequency_penalty",
                 [](const RolloutOptions& r) { return r.frequency_penalty != 0; });
  warn_of_filter("presence_penalty",
                 [](const RolloutOptions& r) { return r.presence_penalty != 0; });
  s.check("model.dtype",
          [](const RlOptions& o) { return untrainable_dtype(o.model.dtype, o.train.common); });
  s.warn("train.micro_batch_tokens", [](const RlOptions& o) {
    const std::int64_t longest = o.rollout.max_new_tokens + o.data.max_prompt_tokens.value_or(0);
    return longest > o.train.common.micro_batch_tokens
               ? "is less than the longest sample, which then makes a micro-batch of its own"
               : "";
  });
  s.warn("algorithm.proximal", [](const RlOptions& o) {
    return o.algorithm.proximal == ProximalPolicy::kRecompute && o.staleness.max == 0
               ? "costs a forward pass and changes nothing with staleness.max 0"
               : "";
  });
  s.warn("executor.priority", [](const RlOptions& o) {
    return o.executor.priority != SharingPriority::kShares && o.executor.train_weight != 1.0
               ? "goes before train_weight, which changes nothing"
               : "";
  });
  s.warn("staleness.schedule", [](const RlOptions& o) {
    return o.staleness.schedule == StalenessSchedule::kFixed && o.staleness.max == 0
               ? "changes nothing with staleness.max 0, which is fixed already"
               : "";
  });
}

}  // namespace

void describe(EnumSchema<StalenessPolicy>& e) {
  e.name("pace", StalenessPolicy::kPace,
         "Groups in the order of their admission; the trainer waits for the oldest.");
}

void describe(EnumSchema<StalenessSchedule>& e) {
  e.name("none", StalenessSchedule::kNone, "Any version within staleness.max.")
      .name("fixed", StalenessSchedule::kFixed,
            "Batch k is generated wholly by version k - max: reproducible at any max.");
}

void describe(Schema<RolloutOptions>& s) {
  s.field("group_size", &RolloutOptions::group_size, "Samples drawn for each prompt.")
      .range(1, 1024);
  s.field("max_new_tokens", &RolloutOptions::max_new_tokens, "Longest answer.")
      .range(1, 1e6)
      .unit("tokens");
  s.field("temperature", &RolloutOptions::temperature, "Divides the logits; 0: greedy.")
      .range(0, 100);
  s.field("top_k", &RolloutOptions::top_k, "Draws from the k most probable tokens; 0: all.")
      .at_least(0);
  s.field("top_p", &RolloutOptions::top_p,
          "Draws from the most probable tokens with this mass; 1: all.")
      .above(0)
      .at_most(1);
  s.field("min_p", &RolloutOptions::min_p,
          "Leaves out tokens less probable than this share of the best; 0: none.")
      .range(0, 1);
  s.field("repetition_penalty", &RolloutOptions::repetition_penalty,
          "Weakens tokens seen in prompt or answer; 1: off.")
      .above(0)
      .at_most(100);
  s.field("frequency_penalty", &RolloutOptions::frequency_penalty,
          "Subtracted from a logit for each time the answer holds the token.")
      .range(-100, 100);
  s.field("presence_penalty", &RolloutOptions::presence_penalty,
          "Subtracted from a logit if the answer holds the token.")
      .range(-100, 100);
  s.field("stop", &RolloutOptions::stop, "Texts that end an answer.").one_or_many();
  s.field("stop_ids", &RolloutOptions::stop_ids,
          "Token ids that end an answer, beside the model's own.")
      .one_or_many()
      .at_least(0);
  s.field("workers", &RolloutOptions::workers,
          "Rollout actors; those of one process share one model.")
      .range(1, 256);
  s.field("kv_bytes", &RolloutOptions::kv_bytes, "Memory of cached keys and values.")
      .at_least(1)
      .unit("bytes");
  s.check("temperature", [](const RolloutOptions& o) { return too_cold(o.temperature); });
  s.check("stop", [](const RolloutOptions& o) {
    return has_empty(o.stop) ? "holds an empty text, which would end every answer" : "";
  });
}

void describe(Schema<StalenessOptions>& s) {
  s.field("max", &StalenessOptions::max,
          "How many versions older than the trainer's a trained token may be; 0: synchronous.")
      .range(0, 1000)
      .unit("versions");
  s.field("policy", &StalenessOptions::policy, "Which groups the trainer takes.");
  s.field("schedule", &StalenessOptions::schedule, "Which version generates which batch.");
}

void describe(Schema<RlTrainOptions>& s) {
  s.field("prompts_per_step", &RlTrainOptions::prompts_per_step,
          "Prompts of a batch; it holds rollout.group_size samples of each.")
      .range(1, 65536);
  s.field("minibatches", &RlTrainOptions::minibatches, "Optimizer steps a batch is cut into.")
      .range(1, 65536);
  s.field("epochs", &RlTrainOptions::epochs, "Passes over each batch.").range(1, 1000);
  s.include(&RlTrainOptions::common);
  s.check("minibatches", [](const RlTrainOptions& o) {
    return o.prompts_per_step % o.minibatches != 0 ? "does not divide train.prompts_per_step" : "";
  });
}

void describe(Schema<RlEvalOptions>& s) {
  s.include(&RlEvalOptions::common);
  s.field("samples", &RlEvalOptions::samples, "Answers drawn for each prompt: the k of mean@k.")
      .range(1, 1024);
  s.field("temperature", &RlEvalOptions::temperature, "Divides the logits; 0: greedy.")
      .range(0, 100);
  s.check("temperature", [](const RlEvalOptions& o) { return too_cold(o.temperature); });
  s.check("samples", [](const RlEvalOptions& o) {
    return o.samples > 1 && o.temperature == 0 ? "needs eval.temperature above 0 to differ" : "";
  });
}

void describe(EnumSchema<OnFailedSample>& e) {
  e.name("drop_group", OnFailedSample::kDropGroup, "The whole group is left out.")
      .name("shrink", OnFailedSample::kShrink, "The rest of the group goes on without it.");
}

void describe(Schema<StreamLimits>& s) {
  s.field("bytes", &StreamLimits::bytes, "Most bytes of rows between rollout and training.")
      .at_least(1)
      .unit("bytes");
  s.field("lease_ms", &StreamLimits::lease_ms,
          "Time after which a row that nobody answered for is given to somebody else.")
      .range(1, 86'400'000)
      .unit("ms");
  s.field("max_deliveries", &StreamLimits::max_deliveries,
          "Times a row is given out before it counts as failed.")
      .range(1, 1000);
  s.field("on_failed", &StreamLimits::on_failed,
          "What becomes of a group when one of its samples has failed.");
}

void describe(EnumSchema<SharingPriority>& e) {
  e.name("shares", SharingPriority::kShares,
         "Whichever is behind its share of tokens: see train_weight.")
      .name("rollout", SharingPriority::kRollout,
            "Rollout, until nothing more may be generated: staleness.max bounds it.")
      .name("train", SharingPriority::kTrain, "Training, until its batch is done.");
}

void describe(Schema<ExecutorShareOptions>& s) {
  s.field("priority", &ExecutorShareOptions::priority,
          "Who computes while rollout and training both have work.");
  s.field("train_weight", &ExecutorShareOptions::train_weight,
          "Weight of training against rollout's 1: tokens trained on for each token computed.")
      .above(0)
      .at_most(1e6);
}

void describe(Schema<RlOptions>& s) {
  s.field("model", &RlOptions::model, "The model to start from.");
  s.field("data", &RlOptions::data,
          R"(Rows: {"prompt": ..., "answer": ...} or {"messages": [...], "answer": ...}.)");
  s.field("rollout", &RlOptions::rollout, "How answers are drawn.");
  s.field("reward", &RlOptions::reward,
          "How answers are rewarded; of a list, the weighted sum counts.")
      .one_or_many();
  s.field("algorithm", &RlOptions::algorithm, "How rewards become a loss.");
  s.field("staleness", &RlOptions::staleness, "How far rollout may run ahead of training.");
  s.field("train", &RlOptions::train, "How weights are changed.");
  s.field("eval", &RlOptions::eval, "Evaluation on data.eval, with mean@k and pass@k.");
  s.field("stream", &RlOptions::stream, "The store between rollout and training.");
  s.field("executor", &RlOptions::executor,
          "How rollout and training share the threads; a thread serves one of them at a time.");
  s.include(&RlOptions::run);
  add_rules(s);
}

}  // namespace tidemill::workflows
