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

// The smallest temperature above 0.
constexpr double kLowestTemperature = 0.001;
static_assert(static_cast<float>(kLowestTemperature) == engines::kMinTemperature);
// Much smaller values would be 0 as floats, which the engine refuses.
constexpr double kLowestTopP = 1e-6;
constexpr double kLowestRepetitionPenalty = 1e-6;

std::string rewards_problem(const std::vector<RewardOptions>& rewards) {
  std::set<std::string> names;
  for (const RewardOptions& reward : rewards) {
    if (const std::string name = reward_name(reward); !names.insert(name).second) {
      return "two rewards are named " + name + "; give one of them another name";
    }
  }
  return rewards.empty() ? "needs at least one reward" : "";
}

// Names of settings of other programs that no single key has.
void add_absent(Schema<RlOptions>& s) {
  s.absent({"epsilon", "clip_epsilon", "eps_clip"},
           "did you mean algorithm.clip_low and algorithm.clip_high?");
  s.absent({"reward_weights"}, "each entry of reward has its own weight");
}

// Adds the rules that involve several sections.
void add_rules(Schema<RlOptions>& s) {
  s.check("reward", [](const RlOptions& o) { return rewards_problem(o.reward); });
  s.check("data.epochs", [](const RlOptions& o) {
    return o.data.epochs && o.train.common.steps ? "cannot be combined with train.steps" : "";
  });
  s.check("train.warmup_steps", [](const RlOptions& o) {
    const std::int64_t updates = std::int64_t{o.train.minibatches} * o.train.epochs;
    return o.train.common.steps && o.train.common.warmup_steps > *o.train.common.steps * updates
               ? "exceeds the number of optimizer steps of the run"
               : "";
  });
  s.check("algorithm.scale", [](const RlOptions& o) {
    return o.algorithm.baseline == Baseline::kLeaveOneOut &&
                   o.algorithm.scale != AdvantageScale::kNone
               ? "must be none with baseline: leave_one_out"
               : "";
  });
  s.check("algorithm.overlong.buffer", [](const RlOptions& o) {
    return o.algorithm.overlong && o.algorithm.overlong->buffer > o.rollout.max_new_tokens
               ? "exceeds rollout.max_new_tokens"
               : "";
  });
  s.check("eval.every_steps", [](const RlOptions& o) {
    return o.eval.common.every_steps > 0 && o.data.eval.empty() ? "needs data.eval" : "";
  });
  s.warn("data.eval", [](const RlOptions& o) {
    return o.eval.common.every_steps == 0 && !o.data.eval.empty()
               ? "is not used with eval.every_steps: 0"
               : "";
  });
  s.check("rollout.temperature", [](const RlOptions& o) {
    return o.rollout.temperature == 0 ? "must be above 0, or all samples of a group are equal" : "";
  });
  const auto warn_of_filter = [&s](const char* key, bool (*used)(const RolloutOptions&)) {
    s.warn(std::string("rollout.") + key, [used](const RlOptions& o) {
      return used(o.rollout) ? "changes which tokens are sampled, but not the log-probabilities "
                               "that training uses"
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
               ? "is less than the longest possible sample, which then forms a micro-batch of its "
                 "own"
               : "";
  });
  s.warn("algorithm.proximal", [](const RlOptions& o) {
    return o.algorithm.proximal == ProximalPolicy::kRecompute && o.staleness.max == 0
               ? "costs a forward pass and has no effect with staleness.max: 0"
               : "";
  });
  s.warn("executor.priority", [](const RlOptions& o) {
    return o.executor.priority != SharingPriority::kShares && o.executor.train_weight != 1.0
               ? "overrides train_weight, which then has no effect"
               : "";
  });
  s.warn("staleness.schedule", [](const RlOptions& o) {
    return o.staleness.schedule == StalenessSchedule::kFixed && o.staleness.max == 0
               ? "has no effect with staleness.max: 0, where every batch already has a fixed "
                 "version"
               : "";
  });
  const auto warn_of_transport = [&s](const char* name, auto PlacementOptions::*member) {
    s.warn(std::string("placement.") + name + ".transport", [member](const RlOptions& o) {
      const auto& role = o.placement.*member;
      return role.processes == 0 && role.transport != TransportChoice::kAuto
                 ? "has no effect with processes: 0"
                 : "";
    });
  };
  warn_of_transport("rollout", &PlacementOptions::rollout);
  warn_of_transport("reward", &PlacementOptions::reward);
}

}  // namespace

void describe(EnumSchema<StalenessPolicy>& e) {
  e.name("pace", StalenessPolicy::kPace,
         "Groups in admission order; the trainer waits for the oldest one.");
}

void describe(EnumSchema<StalenessSchedule>& e) {
  e.name("none", StalenessSchedule::kNone, "Any version that staleness.max allows.")
      .name(
          "fixed", StalenessSchedule::kFixed,
          "Version k - max generates the whole batch k, so that a run is reproducible at any max.");
}

void describe(Schema<RolloutOptions>& s) {
  s.field("group_size", &RolloutOptions::group_size,
          "Samples generated for each prompt, whose rewards are compared.")
      .range(2, 1024)
      .also_called({"num_generations", "n", "num_return_sequences", "num_samples_per_prompt",
                    "n_samples_per_prompt"});
  s.field("max_new_tokens", &RolloutOptions::max_new_tokens, "Maximum length of a response.")
      .range(1, 1e6)
      .unit("tokens")
      .also_called({"max_completion_length", "max_response_length", "response_length", "max_tokens",
                    "generate_max_len"});
  // `or_zero` lets the rule of the whole run say why 0 is refused.
  s.field("temperature", &RolloutOptions::temperature,
          "Divides the logits. 0 is refused, because all samples of a group would be equal.")
      .range(kLowestTemperature, 100)
      .or_zero();
  s.field("top_k", &RolloutOptions::top_k,
          "Samples only from the k most probable tokens; 0: from all.")
      .at_least(0);
  s.field(
       "top_p", &RolloutOptions::top_p,
       "Samples only from the smallest set of most probable tokens whose total probability reaches "
       "this; 1: from all.")
      .range(kLowestTopP, 1);
  s.field("min_p", &RolloutOptions::min_p,
          "Excludes tokens that are less probable than this fraction of the most probable one; 0: "
          "none.")
      .range(0, 1);
  s.field(
       "repetition_penalty", &RolloutOptions::repetition_penalty,
       "Divides positive and multiplies negative logits of tokens that occur in the prompt or the "
       "response; 1: off.")
      .range(kLowestRepetitionPenalty, 100);
  s.field("frequency_penalty", &RolloutOptions::frequency_penalty,
          "Subtracted from a token's logit for each of its occurrences in the response; 0: off.")
      .range(-100, 100);
  s.field("presence_penalty", &RolloutOptions::presence_penalty,
          "Subtracted from a token's logit if the token occurs in the response; 0: off.")
      .range(-100, 100);
  s.field("stop", &RolloutOptions::stop, "Texts that end a response.").one_or_many();
  s.field("stop_ids", &RolloutOptions::stop_ids,
          "Token ids that end a response, in addition to the model's end tokens.")
      .one_or_many()
      .at_least(0)
      .also_called({"stop_token_ids", "eos_token_id"});
  s.field("workers", &RolloutOptions::workers,
          "Number of rollout actors in each process that generates; all of them share its model.")
      .range(1, 256)
      .also_called({"num_workers", "agent_num_workers"});
  s.field("kv_bytes", &RolloutOptions::kv_bytes,
          "Memory for cached keys and values, of rollout and training together. Without it, the "
          "memory plan reserves enough for all sequences that run at the same time, if "
          "device.memory_bytes allows it.")
      .at_least(1)
      .unit("bytes");
  s.field("prefill_tokens", &RolloutOptions::prefill_tokens,
          "Maximum number of prompt tokens that one iteration of generation computes. No response "
          "gets its next token before the iteration ends, so a smaller limit keeps a long prompt "
          "from delaying the other responses; the prompt then takes more iterations. Changes no "
          "bit of the result. Without it, the limit is the 2048 tokens of a whole iteration.")
      .range(1, 2048)
      .unit("tokens");
  s.check("stop", [](const RolloutOptions& o) {
    return has_empty(o.stop) ? "contains an empty text, which would end every response" : "";
  });
}

void describe(Schema<StalenessOptions>& s) {
  s.field("max", &StalenessOptions::max,
          "Maximum staleness of a token: the version that a batch is trained at, minus the version "
          "that sampled the token; 0: rollout and training alternate.")
      .range(0, 1000)
      .unit("versions")
      .also_called({"max_head_offpolicyness"});
  s.field("policy", &StalenessOptions::policy, "Which groups the trainer takes next.");
  s.field("schedule", &StalenessOptions::schedule, "Which version generates each batch.");
}

void describe(Schema<RlTrainOptions>& s) {
  s.field("prompts_per_step", &RlTrainOptions::prompts_per_step,
          "Prompts in a batch, each with rollout.group_size samples.")
      .range(1, 65536)
      .also_called({"train_batch_size", "generation_batch_size", "per_device_train_batch_size",
                    "batch_size", "rollout_batch_size", "gen_batch_size",
                    "gradient_accumulation_steps"});
  s.field("minibatches", &RlTrainOptions::minibatches,
          "Minibatches that a batch is split into, each for one optimizer step; must divide "
          "train.prompts_per_step.")
      .range(1, 65536)
      .also_called(
          {"ppo_mini_batch_size", "mini_batch_size", "num_mini_batches", "steps_per_generation"});
  s.field("epochs", &RlTrainOptions::epochs, "Training passes over each batch.")
      .range(1, 1000)
      .also_called({"num_iterations", "ppo_epochs", "num_ppo_epochs"});
  s.include(&RlTrainOptions::common);
  s.check("minibatches", [](const RlTrainOptions& o) {
    return o.prompts_per_step % o.minibatches != 0 ? "must divide train.prompts_per_step" : "";
  });
}

void describe(Schema<RlEvalOptions>& s) {
  s.include(&RlEvalOptions::common);
  s.field("samples", &RlEvalOptions::samples,
          "Responses generated for each prompt: the k of mean@k and pass@k.")
      .range(1, 1024)
      .also_called({"num_generations_eval"});
  s.field("temperature", &RlEvalOptions::temperature, "Divides the logits; 0: greedy.")
      .range(kLowestTemperature, 100)
      .or_zero();
  s.check("samples", [](const RlEvalOptions& o) {
    return o.samples > 1 && o.temperature == 0
               ? "above 1 needs eval.temperature above 0, or all samples are equal"
               : "";
  });
}

void describe(EnumSchema<OnFailedSample>& e) {
  e.name("drop_group", OnFailedSample::kDropGroup, "The whole group is dropped.")
      .name("shrink", OnFailedSample::kShrink,
            "The other samples of the group are trained without it.");
}

void describe(Schema<StreamLimits>& s) {
  s.field("bytes", &StreamLimits::bytes,
          "Maximum size of the rows between rollout and training; a full stream admits no further "
          "prompts. Must have room for a whole batch.")
      .at_least(1)
      .unit("bytes");
  s.field("lease_ms", &StreamLimits::lease_ms,
          "Time after which a row is delivered again if its worker has neither finished it nor "
          "renewed its lease.")
      .range(1, 86'400'000)
      .unit("ms");
  s.field("max_deliveries", &StreamLimits::max_deliveries,
          "A row fails when processing it has failed this many times. Deliveries that are lost "
          "with a worker or a message do not count.")
      .range(1, 1000);
  s.field("on_failed", &StreamLimits::on_failed,
          "What happens to a group if one of its samples fails.");
}

void describe(EnumSchema<SharingPriority>& e) {
  e.name("shares", SharingPriority::kShares,
         "The one that is behind its share of tokens; see train_weight.")
      .name("rollout", SharingPriority::kRollout,
            "Rollout, until staleness.max lets it generate no more.")
      .name("train", SharingPriority::kTrain, "Training, until its batch is done.");
}

void describe(Schema<ExecutorShareOptions>& s) {
  s.field("priority", &ExecutorShareOptions::priority,
          "Whether rollout or training computes next if both have work.");
  s.field("train_weight", &ExecutorShareOptions::train_weight,
          "With priority: shares, the number of tokens that training processes for each token that "
          "rollout processes.")
      .above(0)
      .at_most(1e6);
}

void describe(Schema<RlOptions>& s) {
  s.field("model", &RlOptions::model, "The model that the run starts from.");
  s.field("data", &RlOptions::data,
          R"(Rows: {"prompt": ..., "answer": ...} or {"messages": [...], "answer": ...}.)");
  s.field("rollout", &RlOptions::rollout, "How responses are generated.");
  s.field("reward", &RlOptions::reward,
          "How responses are scored. The reward of a list is the weighted sum of its entries.")
      .one_or_many()
      .also_called({"reward_funcs", "reward_function", "custom_reward_function", "reward_model"});
  s.field("algorithm", &RlOptions::algorithm, "How rewards become a loss.");
  s.field("staleness", &RlOptions::staleness, "How far rollout may run ahead of training.");
  s.field("train", &RlOptions::train, "How the weights are trained.");
  s.field("eval", &RlOptions::eval, "Evaluation on data.eval: mean@k and pass@k.");
  s.field("stream", &RlOptions::stream, "Limits of the stream between rollout and training.");
  s.field("executor", &RlOptions::executor,
          "How rollout and training take turns on the compute threads.");
  s.field("placement", &RlOptions::placement, "In which processes the parts of the run work.");
  s.include(&RlOptions::run);
  add_absent(s);
  add_rules(s);
}

}  // namespace tidemill::workflows
