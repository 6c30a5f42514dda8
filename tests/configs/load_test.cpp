// SPDX-License-Identifier: Apache-2.0
// Tests valid configurations: their values, their warnings, and that resolved text reads back.
#include "configs/load.hpp"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/schema/reference.hpp"
#include "configs/overrides.hpp"
#include "configs/yaml_tree.hpp"

namespace tidemill::configs {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using workflows::AdvantageScale;
using workflows::AlgorithmOptions;
using workflows::Baseline;
using workflows::LossAggregation;
using workflows::RlOptions;
using workflows::SftOptions;

class LoadTest : public ::testing::Test {
protected:
  Resolved<RunConfig> read(std::string_view text) {
    auto tree = parse_yaml(text, "run.yaml");
    EXPECT_TRUE(tree.ok()) << tree.status().message();
    auto resolved = schema_.read(tree.value());
    EXPECT_TRUE(resolved.ok()) << resolved.status().message();
    return std::move(resolved).value();
  }
  RlOptions read_rl(const std::string& more) {
    return *read("workflow: rl\nmodel: {path: m}\ndata: {train: t}\n" + more)
                .value.workflow.get<RlOptions>();
  }
  Schema<RunConfig> schema_ = Schema<RunConfig>::described();
};

TEST_F(LoadTest, AGrpoRunNeedsFewLines) {
  const std::string text = R"(workflow: rl
model: {path: models/my-model}
data: {train: data/train.jsonl, eval: data/eval.jsonl}
rollout: {group_size: 8, max_new_tokens: 64, temperature: 1.0, workers: 2}
reward: {kind: exact_match}
algorithm: {name: grpo}
staleness: {max: 1, policy: pace}
train: {steps: 100, prompts_per_step: 16, learning_rate: 1e-4, adapter: {kind: lora, rank: 16}}
eval: {every_steps: 20}
checkpoint: {every_steps: 20}
)";
  EXPECT_LT(std::count(text.begin(), text.end(), '\n'), 20);
  const Resolved<RunConfig> run = read(text);
  EXPECT_THAT(run.warnings, IsEmpty());
  const auto* rl = run.value.workflow.get<RlOptions>();
  ASSERT_NE(rl, nullptr);
  EXPECT_EQ(rl->model.path, "models/my-model");
  EXPECT_FALSE(rl->model.dtype);
  ASSERT_EQ(rl->data.train.size(), 1U);
  EXPECT_EQ(rl->data.train[0].path, "data/train.jsonl");
  EXPECT_FALSE(rl->data.train[0].weight);
  EXPECT_EQ(rl->rollout.max_new_tokens, 64);
  EXPECT_NE(rl->reward.at(0).scoring.get<workflows::ExactMatchReward>(), nullptr);
  EXPECT_EQ(rl->stream.on_failed, workflows::OnFailedSample::kDropGroup);
  EXPECT_EQ(rl->staleness.max, 1);
  EXPECT_EQ(rl->train.common.steps, 100);
  EXPECT_EQ(rl->train.common.learning_rate, 1e-4);
  ASSERT_TRUE(rl->train.common.adapter);
  EXPECT_EQ(rl->train.common.adapter->source.get<workflows::NewLora>()->rank, 16);
  EXPECT_EQ(rl->run.checkpoint.every_steps, 20);
}

TEST_F(LoadTest, ReadsASupervisedRunWrittenByAnotherProgram) {
  const Resolved<RunConfig> run = read(
      "workflow: sft\n"
      "model: {path: DIR, dtype: f32}                                   # f32 | bf16\n"
      "data: {train: rows.jsonl, shuffle: false}                        # rows\n"
      "train: {steps: 3, sequences_per_step: 4, learning_rate: 1e-2, schedule: constant, "
      "weight_decay: 0.1,\n"
      "        weight_decay_exclude: none, max_grad_norm: 1.0, adapter: {path: ADAPTER_DIR}}\n");
  EXPECT_THAT(run.warnings, IsEmpty());
  const auto* sft = run.value.workflow.get<SftOptions>();
  ASSERT_NE(sft, nullptr);
  EXPECT_EQ(sft->model.dtype, workflows::ModelDType::kF32);
  EXPECT_FALSE(sft->data.shuffle);
  EXPECT_EQ(sft->train.sequences_per_step, 4);
  const workflows::TrainOptions& train = sft->train.common;
  EXPECT_EQ(train.steps, 3);
  EXPECT_EQ(train.learning_rate, 1e-2);
  EXPECT_EQ(train.schedule, workflows::LearningRateSchedule::kConstant);
  EXPECT_EQ(train.weight_decay, 0.1);
  EXPECT_EQ(train.weight_decay_exclude, workflows::WeightDecayExclude::kNone);
  EXPECT_EQ(train.max_grad_norm, 1.0);
  EXPECT_EQ(train.warmup_steps, 0);
  EXPECT_EQ(train.betas, (std::vector<double>{0.9, 0.999}));
  EXPECT_EQ(train.epsilon, 1e-8);
  ASSERT_TRUE(train.adapter);
  ASSERT_NE(train.adapter->source.get<workflows::GivenAdapter>(), nullptr);
  EXPECT_EQ(train.adapter->source.get<workflows::GivenAdapter>()->path, "ADAPTER_DIR");
}

TEST_F(LoadTest, SupervisedDefaultsArePublishedValues) {
  const auto run = read("workflow: sft\nmodel: {path: m}\ndata: {train: t}\n");
  const workflows::TrainOptions& train = run.value.workflow.get<SftOptions>()->train.common;
  EXPECT_EQ(train.weight_decay, 0.0);
  EXPECT_EQ(train.weight_decay_exclude, workflows::WeightDecayExclude::kNormsAndBiases);
  EXPECT_FALSE(train.adapter);
  EXPECT_FALSE(train.steps);
}

TEST_F(LoadTest, AlgorithmsHaveTheirPublishedValues) {
  const AlgorithmOptions grpo = read_rl("").algorithm;
  EXPECT_EQ(grpo.name, "grpo");
  EXPECT_EQ(grpo.baseline, Baseline::kGroupMean);
  EXPECT_EQ(grpo.scale, AdvantageScale::kGroupStd);
  EXPECT_EQ(grpo.scale_epsilon, 1e-6);
  EXPECT_EQ(grpo.clip_low, 0.2);
  EXPECT_EQ(grpo.clip_high, 0.2);
  EXPECT_EQ(grpo.aggregation, LossAggregation::kSeqMeanTokenMean);
  EXPECT_EQ(grpo.proximal, workflows::ProximalPolicy::kBehavior);
  EXPECT_FALSE(grpo.filter_groups);

  const AlgorithmOptions dr_grpo = read_rl("algorithm: {name: dr_grpo}\n").algorithm;
  EXPECT_EQ(dr_grpo.scale, AdvantageScale::kNone);
  EXPECT_EQ(dr_grpo.aggregation, LossAggregation::kFixedLength);

  const AlgorithmOptions dapo = read_rl("algorithm: {name: dapo}\n").algorithm;
  EXPECT_EQ(dapo.clip_low, 0.2);
  EXPECT_EQ(dapo.clip_high, 0.28);
  EXPECT_EQ(dapo.aggregation, LossAggregation::kTokenMean);
  EXPECT_TRUE(dapo.filter_groups);
  EXPECT_FALSE(dapo.overlong);

  const AlgorithmOptions rloo = read_rl("algorithm: {name: rloo}\n").algorithm;
  EXPECT_EQ(rloo.baseline, Baseline::kLeaveOneOut);
  EXPECT_EQ(rloo.scale, AdvantageScale::kNone);
  EXPECT_EQ(rloo.aggregation, LossAggregation::kSeqMeanTokenSum);
}

TEST_F(LoadTest, KeysExpressEveryRowOfTheAlgorithmTable) {
  for (const engines::Algorithm& row : engines::algorithms()) {
    const engines::Algorithm chosen =
        workflows::chosen_algorithm(workflows::algorithm_keys(row), 7);
    EXPECT_EQ(chosen.name, row.name);
    EXPECT_EQ(chosen.advantage, row.advantage) << row.name;
    if (row.advantage == engines::AdvantageKind::kGrpo) {
      EXPECT_EQ(chosen.grpo.scale, row.grpo.scale) << row.name;
    }
    EXPECT_EQ(chosen.grpo.eps, row.grpo.eps) << row.name;
    EXPECT_EQ(chosen.policy.aggregate.kind, row.policy.aggregate.kind) << row.name;
    EXPECT_EQ(chosen.policy.clip_low, row.policy.clip_low) << row.name;
    EXPECT_EQ(chosen.policy.clip_high, row.policy.clip_high) << row.name;
    EXPECT_EQ(chosen.group_filter.has_value(), row.group_filter.has_value()) << row.name;
    EXPECT_FALSE(chosen.overlong.has_value()) << row.name;
  }
}

TEST_F(LoadTest, KeysOverrideTheValuesOfTheAlgorithm) {
  const AlgorithmOptions options =
      read_rl("algorithm: {clip_high: 0.3, overlong: {buffer: 16}, name: dapo}\n").algorithm;
  EXPECT_EQ(options.name, "dapo");
  EXPECT_EQ(options.clip_high, 0.3);
  EXPECT_TRUE(options.filter_groups);
  ASSERT_TRUE(options.overlong);
  EXPECT_EQ(options.overlong->buffer, 16);
  EXPECT_EQ(options.overlong->factor, 1.0);
}

TEST_F(LoadTest, ReadsTheKeysOfEveryRewardKind) {
  EXPECT_EQ(read_rl("reward: {kind: number, tolerance: 0.5}\n")
                .reward.at(0)
                .scoring.get<workflows::NumberReward>()
                ->tolerance,
            0.5);
  EXPECT_EQ(read_rl("reward: {kind: regex, pattern: '^a{2}$'}\n")
                .reward.at(0)
                .scoring.get<workflows::RegexReward>()
                ->pattern,
            "^a{2}$");
  const auto command = read_rl(
      "reward: {kind: command, command: [python3, r.py], timeout_ms: 5}\n"
      "stream: {on_failed: shrink}\n");
  EXPECT_THAT(command.reward.at(0).scoring.get<workflows::CommandReward>()->command,
              ElementsAre("python3", "r.py"));
  EXPECT_EQ(command.reward.at(0).scoring.get<workflows::CommandReward>()->timeout_ms, 5);
  EXPECT_EQ(command.stream.on_failed, workflows::OnFailedSample::kShrink);
}

TEST_F(LoadTest, RewardsMayBeAWeightedList) {
  const auto rewards = read_rl(
                           "reward:\n  - {kind: number, weight: 2}\n"
                           "  - {kind: regex, pattern: x, name: form, weight: -0.5}\n")
                           .reward;
  ASSERT_EQ(rewards.size(), 2U);
  EXPECT_EQ(rewards[0].weight, 2.0);
  EXPECT_EQ(workflows::reward_name(rewards[0]), "number");
  EXPECT_EQ(rewards[1].weight, -0.5);
  EXPECT_EQ(workflows::reward_name(rewards[1]), "form");
  EXPECT_EQ(rewards[1].scoring.get<workflows::RegexReward>()->pattern, "x");
}

TEST_F(LoadTest, DataMayComeFromWeightedSources) {
  const Resolved<RunConfig> run = read(
      "workflow: rl\nmodel: {path: m}\n"
      "data:\n  train:\n    - {path: a.jsonl, weight: 0.25}\n    - {weight: 3, path: "
      "'b*.jsonl'}\n");
  const auto& train = run.value.workflow.get<RlOptions>()->data.train;
  ASSERT_EQ(train.size(), 2U);
  EXPECT_EQ(train[0].weight, 0.25);
  EXPECT_EQ(train[1].path, "b*.jsonl");
  EXPECT_EQ(train[1].weight, 3.0);
  const auto plain = read_rl("").data.train;
  EXPECT_EQ(plain.at(0).path, "t");
}

TEST_F(LoadTest, BytesTakeSuffixes) {
  EXPECT_EQ(read_rl("rollout: {kv_bytes: 64MiB}\n").rollout.kv_bytes, 64 << 20);
  EXPECT_EQ(read_rl("stream: {bytes: 4096}\n").stream.bytes, 4096);
}

TEST_F(LoadTest, WarnsOfKeysThatDoNotGoTogether) {
  const auto warnings = [this](const std::string& more) {
    return read("workflow: rl\nmodel: {path: m}\ndata: {train: t}\n" + more).warnings;
  };
  const std::string filter =
      "changes which tokens are sampled, but not the log-probabilities that training uses";
  EXPECT_THAT(
      warnings("rollout:\n  top_k: 5\n  top_p: 0.9\n  min_p: 0.1\n"
               "  repetition_penalty: 1.1\n  frequency_penalty: 0.1\n"
               "  presence_penalty: 0.1\n"),
      ElementsAre("run.yaml:5: rollout.top_k: " + filter, "run.yaml:6: rollout.top_p: " + filter,
                  "run.yaml:7: rollout.min_p: " + filter,
                  "run.yaml:8: rollout.repetition_penalty: " + filter,
                  "run.yaml:9: rollout.frequency_penalty: " + filter,
                  "run.yaml:10: rollout.presence_penalty: " + filter));
  EXPECT_THAT(warnings("algorithm: {proximal: recompute}\n"),
              ElementsAre("run.yaml:4: algorithm.proximal: costs a forward pass and has no "
                          "effect with staleness.max: 0"));
  EXPECT_THAT(warnings("staleness: {max: 1}\nalgorithm: {proximal: recompute}\n"), IsEmpty());
  EXPECT_THAT(warnings("staleness: {schedule: fixed}\n"),
              ElementsAre("run.yaml:4: staleness.schedule: has no effect with staleness.max: 0, "
                          "where every batch already has a fixed version"));
  EXPECT_THAT(warnings("staleness: {schedule: fixed, max: 1}\n"), IsEmpty());
  const std::string unused = "run.yaml:3: data.eval: is not used with eval.every_steps: 0";
  for (const char* workflow : {"rl", "sft"}) {
    const std::string text =
        "workflow: " + std::string(workflow) + "\nmodel: {path: m}\ndata: {train: t, eval: e}\n";
    EXPECT_THAT(read(text).warnings, ElementsAre(unused)) << workflow;
    EXPECT_THAT(read(text + "eval: {every_steps: 5}\n").warnings, IsEmpty()) << workflow;
  }
  EXPECT_THAT(
      warnings("placement:\n  rollout: {transport: shm}\n  reward: {transport: zmq}\n"),
      ElementsAre("run.yaml:5: placement.rollout.transport: has no effect with processes: 0",
                  "run.yaml:6: placement.reward.transport: has no effect with processes: 0"));
  EXPECT_THAT(warnings("placement: {rollout: {processes: 1, transport: shm}}\n"), IsEmpty());
  EXPECT_THAT(warnings("executor: {priority: train, train_weight: 2}\n"),
              ElementsAre("run.yaml:4: executor.priority: overrides train_weight, which then has "
                          "no effect"));
  EXPECT_THAT(warnings("executor: {priority: train}\n"), IsEmpty());
  EXPECT_THAT(warnings("executor: {priority: shares, train_weight: 2}\n"), IsEmpty());
  const auto warned_of_batch = [this](const std::string& tokens) {
    const auto read_warnings = read(
                                   "workflow: rl\nmodel: {path: m}\n"
                                   "data: {train: t, max_prompt_tokens: 16}\n"
                                   "rollout: {max_new_tokens: 24}\n"
                                   "train: {micro_batch_tokens: " +
                                   tokens + "}\n")
                                   .warnings;
    return !read_warnings.empty();
  };
  EXPECT_FALSE(warned_of_batch("40"));
  EXPECT_TRUE(warned_of_batch("39"));
  EXPECT_THAT(warnings("rollout: {max_new_tokens: 5000}\n"),
              ElementsAre("run.yaml: train.micro_batch_tokens: is less than the longest possible "
                          "sample, which then forms a micro-batch of its own"));
}

TEST_F(LoadTest, ResolvedTextReadsBack) {
  for (const std::string text :
       {"workflow: rl\nmodel: {path: 'a b'}\ndata: {train: ['*.jsonl', \"é\\n\"], seed: 3}\n"
        "algorithm: {name: dapo, overlong: {buffer: 4, factor: 0.5}}\n"
        "rollout: {stop: ['null', '- x', '#'], stop_ids: [1, 2]}\n"
        "reward: {kind: command, command: [sh, -c, 'exit 1']}\n"
        "train: {steps: 5, adapter: {rank: 4, target_modules: [q_proj]}}\nname: '1e3'\n",
        "workflow: sft\nmodel: {path: m, dtype: bf16}\ndata: {train: t, epochs: 2}\n"
        "train: {adapter: {path: a}, learning_rate: 3e-5}\n"}) {
    const std::string resolved = resolved_text(schema_, read(text).value);
    EXPECT_EQ(resolved_text(schema_, read(resolved).value), resolved);
    EXPECT_EQ(resolved.find("nan"), std::string::npos);
  }
}

TEST_F(LoadTest, TextWithAnyCharactersReadsBack) {
  const std::vector<std::string> texts{
      "\x1B[0m", "\x01\x7F\x1F", "a\tb\n", "\"\\", "'",   "#",  "- x", "a: b",     "[a]",
      "{a}",     "null",         "~",      "True", "1e3", "-1", ".5",  "\xC3\xBC", " "};
  auto config = read("workflow: rl\nmodel: {path: m}\ndata: {train: t}\n").value;
  auto rl = *config.workflow.get<workflows::RlOptions>();
  rl.rollout.stop = texts;
  config.workflow = OneOf{"rl", rl};
  const std::string resolved = resolved_text(schema_, config);
  const auto again = read(resolved).value;
  EXPECT_EQ(again.workflow.get<workflows::RlOptions>()->rollout.stop, texts) << resolved;
}

// A free-form value has no type, so that text without quotes stays as it is: it may be a number.
TEST_F(LoadTest, PlainTextInFreeFormValuesReadsBack) {
  const std::string text =
      "workflow: rl\nmodel: {path: m}\ndata:\n  train: t\n  chat_template_kwargs:\n"
      "    lines: 0\n\n      _\n    list:\n      - a, b\n      - x [y]\n    hash: a#b\n"
      "    values: [1, -2.5, 1e3, true, x]\n";
  const std::vector<Override> overrides{{"data.chat_template_kwargs.title=a: b", "argument 1"}};
  const auto run = read_run_config(schema_, text, "run.yaml", overrides);
  ASSERT_TRUE(run.ok()) << run.status().message();
  const std::string resolved = resolved_text(schema_, run.value().value);
  EXPECT_THAT(resolved, ::testing::HasSubstr("    lines: \"0\\n_\"\n"
                                             "    list: [\"a, b\", \"x [y]\"]\n"
                                             "    hash: \"a#b\"\n"
                                             "    values: [1, -2.5, 1e3, true, x]\n"
                                             "    title: \"a: b\"\n"));
  EXPECT_EQ(resolved_text(schema_, read(resolved).value), resolved);
}

TEST_F(LoadTest, PresetsAreValidWithoutWarnings) {
  for (const char* name : {"quickstart.yaml", "quickstart-sft.yaml"}) {
    const auto run = load_run_config(schema_, std::string(TIDEMILL_SOURCE_DIR "/configs/") + name);
    ASSERT_TRUE(run.ok()) << run.status().message();
    EXPECT_THAT(run.value().warnings, IsEmpty());
  }
}

TEST_F(LoadTest, OverridesReplaceValuesOfTheFile) {
  const std::string path = TIDEMILL_SOURCE_DIR "/configs/quickstart.yaml";
  const std::vector<Override> overrides{
      {"train.steps=7", "argument 3"},
      {"train.adapter={rank: 2}", "argument 4"},
      {"data.train=*.jsonl", "argument 5"},
      {"rollout.stop=a: #b", "argument 6"},
      {"algorithm.overlong=null", "argument 7"},
      {"stream.lease_ms=5", "argument 8"},
      {"name=\"x\"", "argument 9"},
  };
  const auto run = load_run_config(schema_, path, overrides);
  ASSERT_TRUE(run.ok()) << run.status().message();
  const auto* rl = run.value().value.workflow.get<RlOptions>();
  EXPECT_EQ(rl->train.common.steps, 7);
  EXPECT_EQ(rl->train.common.adapter->source.get<workflows::NewLora>()->rank, 2);
  EXPECT_EQ(rl->data.train.at(0).path, "*.jsonl");
  EXPECT_THAT(rl->rollout.stop, ElementsAre("a: #b"));
  EXPECT_EQ(rl->stream.lease_ms, 5);
  EXPECT_EQ(rl->run.name, "x");
}

// A key of a single group may be written without a list, and run.yaml holds the list.
TEST_F(LoadTest, OverridesReachTheOnlyGroupOfAList) {
  const auto reward_of = [](const std::string& rewards) {
    auto tree = parse_yaml("workflow: rl\nreward: " + rewards, "run.yaml");
    EXPECT_TRUE(tree.ok()) << tree.status().message();
    const std::vector<Override> overrides{{"reward.timeout_ms=5", "argument 3"}};
    const Status applied = apply_overrides(overrides, tree.value());
    if (!applied.ok()) {
      return applied.message();
    }
    return tree.value().find("reward")->value.items.at(0).find("timeout_ms")->value.text;
  };
  EXPECT_EQ(reward_of("[{kind: command, command: [a], timeout_ms: 9}]"), "5");
  EXPECT_EQ(reward_of("[{kind: command, command: [a]}]"), "5");
  EXPECT_EQ(reward_of("[{kind: command, command: [a]}, {kind: number}]"),
            "argument 3: reward.timeout_ms: cannot set one element of a list; give the whole list: "
            "reward=[...]");
}

TEST_F(LoadTest, AnOverrideThatCannotBeSetIsRefused) {
  const auto refusal = [](const std::string& text) {
    auto tree = parse_yaml("workflow: rl\ndata: {train: [a, b]}\nstop: [x]\n", "run.yaml");
    EXPECT_TRUE(tree.ok()) << tree.status().message();
    const std::vector<Override> overrides{{text, "argument 3"}};
    return apply_overrides(overrides, tree.value()).message();
  };
  const auto levels = [](int count) {
    std::string path = "a";
    for (int i = 1; i < count; ++i) {
      path += ".a";
    }
    return path + "=1";
  };
  EXPECT_EQ(refusal("a=\xFF"), "argument 3: is not UTF-8 text");
  EXPECT_EQ(refusal(std::string("a=b\0c", 5)), "argument 3: contains a NUL character");
  EXPECT_EQ(refusal(levels(kMaxYamlDepth)), "");
  EXPECT_EQ(refusal(levels(kMaxYamlDepth + 1)), "argument 3: names a key deeper than 32 levels");
  const std::string list = ": cannot set one element of a list; give the whole list: ";
  EXPECT_EQ(refusal("data.train[0]=c"), "argument 3: data.train[0]" + list + "data.train=[...]");
  EXPECT_EQ(refusal("stop[0]=c"), "argument 3: stop[0]" + list + "stop=[...]");
  EXPECT_EQ(refusal("stop.first=c"), "argument 3: stop.first" + list + "stop=[...]");
}

TEST_F(LoadTest, AnOverrideMayUnsetAKey) {
  const auto kind_of = [](const std::string& text) {
    auto tree = parse_yaml("workflow: rl\nname: x\n", "run.yaml");
    const std::vector<Override> overrides{{text, "argument 3"}};
    EXPECT_TRUE(apply_overrides(overrides, tree.value()).ok());
    return tree.value().find("name")->value.kind;
  };
  EXPECT_EQ(kind_of("name=null"), ConfigNode::Kind::kNull);
  EXPECT_EQ(kind_of("name=~"), ConfigNode::Kind::kNull);
  EXPECT_EQ(kind_of("name=nul"), ConfigNode::Kind::kPlain);
  EXPECT_EQ(kind_of("name=\"\""), ConfigNode::Kind::kQuoted);
}

TEST_F(LoadTest, ErrorsInAnOverrideNameItsArgument) {
  const std::string path = TIDEMILL_SOURCE_DIR "/configs/quickstart.yaml";
  const std::vector<Override> overrides{{"train.minibatches=5", "argument 3"}};
  const auto run = load_run_config(schema_, path, overrides);
  EXPECT_THAT(run.status().message(), StartsWith("argument 3: train.minibatches: must divide"));
  const std::vector<Override> deeper{{"data.train.path=a", "argument 4"}};
  EXPECT_EQ(
      load_run_config(schema_, path, deeper).status().message(),
      "argument 4: data.train.path: data.train has no keys in this run; give its whole value: "
      "data.train=...");
}

// A rule that a key breaks is reported at the argument that sets the key, even if the file sets it
// too.
TEST_F(LoadTest, ErrorsInAKeyOfTheFileNameTheArgumentThatReplacesIt) {
  const std::string file =
      "workflow: rl\nmodel: {path: m}\ndata: {train: t}\n"
      "train:\n  steps: 1\n  prompts_per_step: 4\n  minibatches: 2\n";
  const auto error_with = [&](const std::vector<Override>& overrides) {
    return read_run_config(schema_, file, "run.yaml", overrides).status().message();
  };
  EXPECT_THAT(error_with({{"train.minibatches=3", "argument 3"}}),
              StartsWith("argument 3: train.minibatches: must divide"));
  EXPECT_THAT(
      error_with({{"train.minibatches=1", "argument 3"}, {"train.minibatches=3", "argument 4"}}),
      StartsWith("argument 4: train.minibatches: must divide"));
  EXPECT_THAT(error_with({{"train.steps=x", "argument 3"}}),
              StartsWith("argument 3: train.steps: needs"));
  EXPECT_THAT(error_with({{"train={minibatches: 3}", "argument 3"}}),
              StartsWith("argument 3: train.minibatches: must divide"));
  EXPECT_THAT(error_with({{"train.prompts_per_step=5", "argument 3"}}),
              StartsWith("run.yaml:7: train.minibatches: must divide"));
}

TEST_F(LoadTest, AWarmupMayTakeAllOptimizerStepsOfTheRun) {
  const std::string train = "train: {steps: 2, prompts_per_step: 4, minibatches: 2, epochs: 3, ";
  EXPECT_EQ(read_rl(train + "warmup_steps: 12}\n").train.common.warmup_steps, 12);
  const auto longer = parse_yaml(
      "workflow: rl\nmodel: {path: m}\ndata: {train: t}\n" + train + "warmup_steps: 13}\n",
      "run.yaml");
  EXPECT_EQ(schema_.read(longer.value()).status().message(),
            "run.yaml:4: train.warmup_steps: exceeds the number of optimizer steps of the run");
}

TEST_F(LoadTest, ReadsAdaptersOfEveryKind) {
  const auto source = [this](const std::string& adapter) {
    return read_rl("train: {steps: 1, adapter: " + adapter + "}\n").train.common.adapter->source;
  };
  const OneOf plain = source("{kind: lora}");
  EXPECT_FALSE(plain.get<workflows::NewLora>()->dora);
  EXPECT_EQ(plain.get<workflows::NewLora>()->bias, workflows::TrainedBias::kNone);
  const OneOf rich = source("{dora: true, bias: lora_only, modules_to_save: lm_head}");
  EXPECT_TRUE(rich.get<workflows::NewLora>()->dora);
  EXPECT_EQ(rich.get<workflows::NewLora>()->bias, workflows::TrainedBias::kLoraOnly);
  EXPECT_THAT(rich.get<workflows::NewLora>()->modules_to_save, ElementsAre("lm_head"));
  const OneOf ia3 = source("{kind: ia3}");
  EXPECT_THAT(ia3.get<workflows::NewIa3>()->target_modules,
              ElementsAre("k_proj", "v_proj", "down_proj"));
  EXPECT_THAT(ia3.get<workflows::NewIa3>()->feedforward_modules, ElementsAre("down_proj"));
}

TEST_F(LoadTest, AnRlRunHasAtMostNinetyKeysOutsideTheAlgorithm) {
  std::set<std::string> keys;  // a key of several kinds counts once
  for (const KeyReference& key : list_keys(schema_.structure())) {
    const bool rl = key.when.empty() || key.when.front() == "workflow: rl";
    if (rl && !key.has_keys && !key.path.starts_with("algorithm.")) {
      keys.insert(key.path);
    }
  }
  std::printf("an rl run has %zu keys outside algorithm\n", keys.size());
  EXPECT_LE(keys.size(), 90U);
  EXPECT_GE(keys.size(), 50U);
}

TEST_F(LoadTest, EveryKeyHasHelpAndExplainsItself) {
  for (const KeyReference& key : list_keys(schema_.structure())) {
    EXPECT_TRUE(!key.help.empty() && key.help.ends_with('.')) << key.path << ": " << key.help;
    const auto text = explain_key(schema_.structure(), key.path);
    ASSERT_TRUE(text.ok()) << key.path;
    EXPECT_TRUE(text.value().starts_with(key.path + ": ")) << text.value();
  }
}

struct LengthReward {
  std::int32_t target = 10;
};

void describe(Schema<LengthReward>& s) {
  s.field("target", &LengthReward::target, "Desired length.").at_least(0);
}

TEST_F(LoadTest, ProgramsCanAddRewardsAndAlgorithms) {
  ASSERT_TRUE(schema_.add_kind<LengthReward>("reward", "length", "Rewards a length.").ok());
  AlgorithmOptions mine;
  mine.clip_high = 0.4;
  ASSERT_TRUE(schema_.add_preset("algorithm", "mine", "A custom algorithm.", mine).ok());
  const RlOptions rl = read_rl("reward: {kind: length, target: 3}\nalgorithm: {name: mine}\n");
  ASSERT_NE(rl.reward.at(0).scoring.get<LengthReward>(), nullptr);
  EXPECT_EQ(rl.reward.at(0).scoring.get<LengthReward>()->target, 3);
  EXPECT_EQ(rl.algorithm.clip_high, 0.4);
}

TEST(RunNameTest, DefaultIsTheStemOfTheFile) {
  EXPECT_EQ(default_run_name("configs/quickstart.yaml"), "quickstart");
  EXPECT_EQ(default_run_name("a b/c d.yaml"), "c-d");
  EXPECT_EQ(default_run_name(".hidden"), "run.hidden");
  EXPECT_EQ(default_run_name(""), "run");
  EXPECT_EQ(default_run_name("\xC3\xBC.yaml"), "run");
  EXPECT_EQ(default_run_name("gr\xC3\xBCn.yaml"), "gr--n");
  EXPECT_EQ(default_run_name("-n.yaml"), "n");
  EXPECT_TRUE(workflows::is_run_name(default_run_name(std::string(500, 'x') + ".yaml")));
}

}  // namespace
}  // namespace tidemill::configs
