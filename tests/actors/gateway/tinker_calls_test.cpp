// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/gateway/tinker/read_calls.hpp"
#include "actors/gateway/tinker/results.hpp"
#include "actors/gateway/tinker/zstd.hpp"

namespace tidemill::test {
namespace {

namespace tinker = actors::tinker;
using engines::TokenSumKind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;
using tinker::CheckpointKind;

const std::string kRun = "11111111-2222-3333-4444-555555555555:train:0";

std::string golden(const std::string& name) {
  std::ifstream file(std::string(TIDEMILL_TEST_DIR) + "/golden/tinker/" + name, std::ios::binary);
  EXPECT_TRUE(file.is_open()) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

tinker::ModelLimits small_model() {
  return {100, 64, 48, {99}};
}

template <class T>
T accepted(tinker::CallResult<T> result) {
  if (const auto* refused = std::get_if<tinker::RefusedCall>(&result)) {
    ADD_FAILURE() << refused->error.message;
    return T();
  }
  return std::get<T>(std::move(result));
}

template <class T>
tinker::RefusedCall refused(tinker::CallResult<T> result) {
  if (auto* call = std::get_if<tinker::RefusedCall>(&result)) {
    return std::move(*call);
  }
  ADD_FAILURE() << "the request was accepted";
  return {};
}

template <class T>
std::string refusal(tinker::CallResult<T> result) {
  return refused(std::move(result)).error.message;
}

tinker::ForwardCall forward(int number) {
  return accepted(tinker::read_forward(golden("forward_backward_" + std::to_string(number) + ".pb"),
                                       "", small_model()));
}

TEST(TinkerCallsTest, EveryGoldenFileIsRead) {
  int files = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(TIDEMILL_TEST_DIR) + "/golden/tinker")) {
    const std::string name = entry.path().extension().string();
    files += name == ".json" || name == ".pb" || name == ".zst" ? 1 : 0;
  }
  EXPECT_EQ(files, 26);  // those that the tests below name
}

// -- forward_backward -----------------------------------------------------------------------------

TEST(TinkerCallsTest, ReadsCrossEntropy) {
  const tinker::ForwardCall call = forward(0);
  EXPECT_EQ(call.turn.model_id, kRun);
  EXPECT_EQ(call.turn.seq_id, 1);
  EXPECT_TRUE(call.forward_only);
  EXPECT_EQ(call.loss.kind, TokenSumKind::kCrossEntropy);
  ASSERT_EQ(call.sequences.size(), 1U);
  const engines::TrainSequence& sequence = call.sequences[0];
  EXPECT_THAT(sequence.ids, ElementsAre(1, 2, 3));
  EXPECT_THAT(sequence.response_mask, ElementsAre(0, 1, 1));
  EXPECT_THAT(sequence.advantages, ElementsAre(0.0F, 0.0F, 1.0F));
  EXPECT_TRUE(sequence.behavior_logprobs.empty());
}

TEST(TinkerCallsTest, ReadsTheRequestsOfOneChunkedCall) {
  // The package sends the second part first.
  const tinker::ForwardCall second = forward(1);
  const tinker::ForwardCall first = forward(2);
  EXPECT_EQ(first.turn.seq_id, 2);
  EXPECT_EQ(second.turn.seq_id, 3);
  EXPECT_FALSE(first.forward_only);
  ASSERT_EQ(first.sequences.size(), 2U);
  EXPECT_EQ(first.sequences[1].id, SampleId{1});
  EXPECT_THAT(first.sequences[1].ids, ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(first.sequences[1].advantages, ElementsAre(0.0F, -0.5F, 1.5F, 0.0F));
  ASSERT_EQ(second.sequences.size(), 1U);
  EXPECT_THAT(second.sequences[0].ids, ElementsAre(8, 9));
}

TEST(TinkerCallsTest, ReadsPolicyLosses) {
  const tinker::ForwardCall ppo = forward(3);
  EXPECT_EQ(ppo.loss.kind, TokenSumKind::kPpo);
  EXPECT_EQ(ppo.loss.ratio_low, 0.9);
  EXPECT_EQ(ppo.loss.ratio_high, 1.1);
  EXPECT_THAT(ppo.sequences[0].behavior_logprobs, ElementsAre(0.0F, 0.0F, -1.25F));
  EXPECT_THAT(ppo.sequences[0].advantages, ElementsAre(0.0F, 0.0F, 0.5F));
  EXPECT_TRUE(ppo.sequences[0].token_weights.empty());
  const tinker::ForwardCall gspo = forward(4);
  EXPECT_EQ(gspo.loss.kind, TokenSumKind::kGspo);
  EXPECT_EQ(gspo.loss.ratio_low, 1.0 - 3e-4);
  EXPECT_THAT(gspo.sequences[0].token_weights, ElementsAre(0.0F, 0.0F, 1.0F));
}

TEST(TinkerCallsTest, ReadsCompressedBodies) {
  const std::string body = golden("forward_backward_8.pb.zst");
  const tinker::ForwardCall call = accepted(tinker::read_forward(body, "zstd", small_model()));
  EXPECT_THAT(call.sequences[0].ids, ElementsAre(1, 2, 3));
  EXPECT_THAT(refusal(tinker::read_forward(body.substr(0, body.size() - 3), "zstd", small_model())),
              HasSubstr("zstd"));
  EXPECT_EQ(refused(tinker::read_forward(body, "gzip", small_model())).error.status, 415U);
  EXPECT_THAT(refusal(tinker::read_forward(body, "", small_model())),
              HasSubstr("not a valid ForwardBackwardRequest"));
}

// Each empty datum takes two bytes here and over a hundred in memory.
TEST(TinkerCallsTest, RefusesBodiesWithTooManyFieldsBeforeItMakesThem) {
  const auto refusal = [](const std::string& body) {
    return refused(tinker::read_forward(body, "", small_model())).error.message;
  };
  const auto nested = [](char tag, const std::string& inner) {
    std::string size;
    for (std::size_t left = inner.size();;) {
      size += static_cast<char>((left & 0x7FU) | (left > 0x7FU ? 0x80U : 0U));
      left >>= 7U;
      if (left == 0) {
        return tag + size + inner;
      }
    }
  };
  std::string many;
  for (int i = 0; i < 600'000; ++i) {
    many += std::string("\x1a\0", 2);
  }
  EXPECT_THAT(refusal(many), HasSubstr("more than 500000 fields"));
  std::string chunks;
  for (int i = 0; i < 600'000; ++i) {
    chunks += std::string("\x0a\0", 2);
  }
  EXPECT_THAT(refusal(nested('\x1a', chunks)), HasSubstr("more than 500000 fields"));
  const std::string shape = nested('\x22', std::string(600'000, '\x01'));
  EXPECT_THAT(refusal(nested('\x1a', nested('\x12', nested('\x12', shape)))),
              HasSubstr("more than 500000 fields"));
}

TEST(TinkerCallsTest, RefusesWhatItDoesNotSupportByName) {
  const auto message = [](int number) {
    const tinker::RefusedCall call = refused(tinker::read_forward(
        golden("forward_backward_" + std::to_string(number) + ".pb"), "", small_model()));
    EXPECT_TRUE(call.turn.has_value());  // later requests must not wait for this one
    EXPECT_EQ(call.turn.value_or(tinker::QueueTurn()).seq_id, number + 1);
    return call.error.message;
  };
  EXPECT_EQ(message(5), "data[0].model_input[1].image: images are not supported");
  EXPECT_EQ(message(6),
            "data[0].loss_fn_inputs.target_tokens: must have one value for each position; several "
            "are not supported");
  EXPECT_THAT(message(7), HasSubstr("loss_fn: the loss \"stable_reinforce\" is not supported"));
}

TEST(TinkerCallsTest, DamagedBodiesAreRefusedOrRead) {
  std::mt19937 random(7);
  int refusals = 0;
  for (const int file : {0, 2, 3, 4, 5, 6, 7}) {
    const std::string body = golden("forward_backward_" + std::to_string(file) + ".pb");
    for (int round = 0; round < 400; ++round) {
      std::string damaged = body;
      for (int i = 0; i < 1 + round % 4; ++i) {
        damaged[random() % damaged.size()] = static_cast<char>(random());
      }
      damaged.resize(damaged.size() - random() % 3);
      const auto result = tinker::read_forward(damaged, "", small_model());
      if (const auto* call = std::get_if<tinker::ForwardCall>(&result)) {
        for (const engines::TrainSequence& sequence : call->sequences) {
          ASSERT_EQ(sequence.response_mask.size(), sequence.ids.size());
          ASSERT_EQ(sequence.advantages.size(), sequence.ids.size());
        }
      } else {
        ASSERT_FALSE(std::get<tinker::RefusedCall>(result).error.message.empty());
        ++refusals;
      }
    }
  }
  EXPECT_GT(refusals, 1000);
}

TEST(TinkerCallsTest, RefusesTokensOutsideTheVocabulary) {
  EXPECT_THAT(refusal(tinker::read_forward(golden("forward_backward_2.pb"), "", {6, 64, 64, {}})),
              HasSubstr("data[1].model_input[0].encoded_text.tokens: the token 6 is not in"));
}

// -- protobuf written by hand ---------------------------------------------------------------------

// Writes protobuf bodies field by field, so that tests do not depend on generated code.
std::string field(int number, const std::string& bytes) {
  std::string out(1, static_cast<char>(number << 3 | 2));
  std::size_t size = bytes.size();
  for (; size >= 128; size /= 128) {
    out.push_back(static_cast<char>(size % 128 | 128));
  }
  return out + static_cast<char>(size) + bytes;
}
std::string varint_field(int number, char value) {
  return {static_cast<char>(number << 3), value};
}
template <class T>
std::string packed(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}
std::string map_entry(const std::string& key, const std::string& value) {
  return field(1, key) + field(2, value);
}
std::string reals(const std::vector<float>& values) {
  return field(1, packed(values)) + varint_field(3, 1);
}
std::string integers(const std::vector<std::int64_t>& values) {
  return field(1, packed(values)) + varint_field(3, 2);
}
using Inputs = std::vector<std::pair<std::string, std::string>>;
std::string request(const std::string& loss, const std::vector<std::int32_t>& ids,
                    const Inputs& inputs) {
  std::string datum = field(1, field(1, field(1, packed(ids))));
  for (const auto& [name, tensor] : inputs) {
    datum += field(2, map_entry(name, tensor));
  }
  return field(1, "m") + varint_field(2, 1) + field(3, datum) + field(4, loss);
}

TEST(TinkerCallsTest, PositionsWithoutTheirOwnTargetMustNotCount) {
  const Inputs inputs = {{"target_tokens", integers({0, 3, 4})},
                         {"logprobs", reals({0, -1, -2})},
                         {"advantages", reals({0, 1, 1})}};
  const tinker::ForwardCall call = accepted(
      tinker::read_forward(request("importance_sampling", {1, 2, 3}, inputs), "", small_model()));
  EXPECT_THAT(call.sequences[0].ids, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(call.sequences[0].response_mask, ElementsAre(0, 0, 1, 1));
  EXPECT_EQ(refusal(tinker::read_forward(request("dro", {1, 2, 3}, inputs), "", small_model())),
            "data[0].loss_fn_inputs.target_tokens[0]: must be the next token of model_input where "
            "the loss counts the position");
  const Inputs counted = {{"target_tokens", integers({0, 3, 4})}, {"weights", reals({-1, 1, 1})}};
  EXPECT_THAT(refusal(tinker::read_forward(request("cross_entropy", {1, 2, 3}, counted), "",
                                           small_model())),
              HasSubstr("target_tokens[0]: must be the next token"));
  // The last target need not be a token where it does not count.
  const Inputs last = {{"target_tokens", integers({2, -1})}, {"weights", reals({1, 0})}};
  EXPECT_THAT(
      accepted(tinker::read_forward(request("cross_entropy", {1, 2}, last), "", small_model()))
          .sequences[0]
          .response_mask,
      ElementsAre(0, 1, 0));
}

TEST(TinkerCallsTest, IntegerWeightsAreConverted) {
  const Inputs inputs = {{"target_tokens", integers({2, 3})}, {"weights", integers({0, 1})}};
  EXPECT_THAT(
      accepted(tinker::read_forward(request("cross_entropy", {1, 2}, inputs), "", small_model()))
          .sequences[0]
          .advantages,
      ElementsAre(0.0F, 0.0F, 1.0F));
}

TEST(TinkerCallsTest, RefusedInputsAreNamed) {
  const std::string targets = integers({2, 3});
  const std::string weights = reals({1, 1});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  struct Case {
    std::string loss;
    Inputs inputs;
    std::string message;
  };
  const std::string prefix = "data[0].loss_fn_inputs.";
  const std::vector<Case> cases = {
      {"cross_entropy", {{"weights", weights}}, prefix + "target_tokens: missing"},
      {"cross_entropy", {{"target_tokens", targets}}, prefix + "weights: missing"},
      {"cross_entropy",
       {{"target_tokens", weights}, {"weights", weights}},
       prefix + "target_tokens: must be an int64 tensor"},
      {"cross_entropy",
       {{"target_tokens", targets}, {"weights", reals({1})}},
       prefix + "weights: must have 2 values, as many as model_input"},
      {"cross_entropy",
       {{"target_tokens", targets}, {"weights", reals({1, nan})}},
       prefix + "weights[1]: is not finite"},
      {"cross_entropy",
       {{"target_tokens", targets}, {"weights", weights}, {"mask", weights}},
       prefix + "mask: the loss does not read this input"},
      {"cross_entropy",
       {{"target_tokens", targets}, {"weights", field(1, packed<float>({1, 1}))}},
       prefix + "weights: must be a float32 tensor"},
      {"cross_entropy",
       {{"target_tokens", targets}, {"weights", field(2, "")}},
       prefix + "weights: must be a float32 tensor"},
      {"cross_entropy",
       {{"target_tokens", targets}, {"weights", field(2, "") + varint_field(3, 1)}},
       prefix + "weights: sparse tensors are not supported"},
      {"gspo",
       {{"target_tokens", targets}, {"logprobs", weights}, {"advantages", weights}},
       prefix + "sequence_ratio_mask: missing"},
      {"ppo",
       {{"target_tokens", targets},
        {"logprobs", weights},
        {"advantages", weights},
        {"clip_low_threshold", weights}},
       prefix + "clip_low_threshold: the loss does not read this input"},
  };
  for (const Case& one : cases) {
    const tinker::RefusedCall call =
        refused(tinker::read_forward(request(one.loss, {1, 2}, one.inputs), "", small_model()));
    EXPECT_EQ(call.error.message, one.message);
    EXPECT_EQ(call.error.param, one.message.substr(0, one.message.find(": ")));
  }
  const std::string valid =
      request("cross_entropy", {1, 2}, {{"target_tokens", targets}, {"weights", weights}});
  const auto config = [&](const std::string& key, double value) {
    const std::string number = "\x11" + packed<double>({value});  // field 2, a double
    return refusal(
        tinker::read_forward(valid + field(5, field(1, key) + number), "", small_model()));
  };
  EXPECT_EQ(config("beta", 1), "loss_fn_config.beta: the loss has no such parameter");
  EXPECT_THAT(
      refusal(tinker::read_forward(field(1, "m") + varint_field(2, 1) + field(4, "cross_entropy"),
                                   "", small_model())),
      HasSubstr("data: must have 1 to"));
  EXPECT_THAT(refusal(tinker::read_forward(request("cross_entropy", {}, {}), "", small_model())),
              HasSubstr("data[0].model_input: has no token"));
  EXPECT_EQ(refusal(tinker::read_forward(
                request("cross_entropy", std::vector<std::int32_t>(48, 1), {}), "", small_model())),
            "data[0].model_input: has 49 tokens with the target of the last one, and at most 48 "
            "are allowed (the context, and serve.tuning.job_tokens)");
  EXPECT_EQ(refusal(tinker::read_forward(
                request("cross_entropy", std::vector<std::int32_t>(47, 1), {}), "", small_model())),
            "data[0].loss_fn_inputs.target_tokens: missing");
  EXPECT_FALSE(refused(tinker::read_forward("", "", small_model())).turn.has_value());
}

// -- JSON -----------------------------------------------------------------------------------------

TEST(TinkerCallsTest, ReadsSessionsAndModels) {
  const auto session = accepted(tinker::read_create_session(golden("create_session_0.json")));
  EXPECT_THAT(session.user_metadata, UnorderedElementsAre(Pair("who", "me")));
  EXPECT_EQ(session.display_name, "demo");
  EXPECT_EQ(refused(tinker::read_create_session(R"({"tags": [], "display_name": ")" +
                                                std::string(20000, 'd') + "\"}"))
                .error.param,
            "tags");
  const auto model = accepted(tinker::read_create_model(golden("create_model_0.json")));
  EXPECT_EQ(model.base_model, "base");
  EXPECT_EQ(model.model_seq_id, 0);
  EXPECT_EQ(model.lora, (tinker::LoraSettings{4, 7, true, false, true}));
  const auto plain = accepted(tinker::read_create_model(golden("create_model_1.json")));
  EXPECT_EQ(plain.lora, (tinker::LoraSettings{32, std::nullopt, true, true, true}));
}

TEST(TinkerCallsTest, ReadsOptimizerSteps) {
  const auto call = accepted(tinker::read_optim_step(golden("optim_step_0.json")));
  EXPECT_EQ(call.turn.seq_id, 9);
  EXPECT_EQ(call.step.learning_rate, 3e-4);
  EXPECT_EQ(call.step.beta1, 0.9);
  EXPECT_EQ(call.step.beta2, 0.95);
  EXPECT_EQ(call.step.epsilon, 1e-12);
  EXPECT_EQ(call.step.weight_decay, 0.01);
  EXPECT_EQ(call.step.max_grad_norm, 1.0);
  const tinker::RefusedCall other = refused(tinker::read_optim_step(golden("optim_step_1.json")));
  EXPECT_EQ(other.error.message,
            "optimizer_params: not supported: the optimizer is adamw; use adam_params");
  ASSERT_TRUE(other.turn.has_value());
  EXPECT_EQ(other.turn.value_or(tinker::QueueTurn()).seq_id, 10);
}

TEST(TinkerCallsTest, RefusesAStepThatWouldRuinTheWeights) {
  const auto message = [](const std::string& params) {
    return refused(tinker::read_optim_step(R"({"model_id": "m", "seq_id": 1, "adam_params": {)" +
                                           params + "}}"))
        .error.message;
  };
  EXPECT_EQ(message(R"("learning_rate": 1e308)"),
            "adam_params.learning_rate: must be a number of at least 0 and at most 10");
  EXPECT_EQ(message(R"("learning_rate": -1)"),
            "adam_params.learning_rate: must be a number of at least 0 and at most 10");
  EXPECT_EQ(message(R"("weight_decay": 1e300)"),
            "adam_params.weight_decay: must be a number of at least 0 and at most 10");
  EXPECT_EQ(message(R"("eps": 0)"),
            "adam_params.eps: must be a number of at least 1e-30 and at most 1");
}

TEST(TinkerCallsTest, ReadsCheckpoints) {
  const auto state =
      accepted(tinker::read_save_weights(CheckpointKind::kTraining, golden("save_weights_0.json")));
  EXPECT_EQ(state.name, "a");
  EXPECT_EQ(state.ttl_seconds, 3600);
  EXPECT_TRUE(state.overwrite);
  EXPECT_THAT(state.user_metadata, UnorderedElementsAre(Pair("k", "v")));
  const auto named = accepted(tinker::read_save_weights(CheckpointKind::kSampler,
                                                        golden("save_weights_for_sampler_0.json")));
  EXPECT_EQ(named.name, "s");
  const auto unnamed = accepted(tinker::read_save_weights(
      CheckpointKind::kSampler, golden("save_weights_for_sampler_1.json")));
  EXPECT_EQ(unnamed.name, std::nullopt);
  EXPECT_EQ(unnamed.sampling_seq_id, 0);
  const auto external = accepted(
      tinker::read_save_weights(CheckpointKind::kExternal, golden("save_weights_external_0.json")));
  EXPECT_EQ(external.name, "e");
  const auto load = accepted(tinker::read_load_weights(golden("load_weights_0.json")));
  EXPECT_FALSE(load.turn.has_value());
  EXPECT_EQ(load.model_seq_id, 1);
  EXPECT_EQ(load.path, (tinker::CheckpointPath{kRun, CheckpointKind::kTraining, "a"}));
  EXPECT_FALSE(load.with_optimizer);
  const auto sampling =
      accepted(tinker::read_create_sampling_session(golden("create_sampling_session_0.json")));
  EXPECT_EQ(sampling.path, (tinker::CheckpointPath{kRun, CheckpointKind::kSampler, "s"}));
}

TEST(TinkerCallsTest, ReadsSampling) {
  const auto call = accepted(tinker::read_sample(golden("asample_0.json"), small_model()));
  EXPECT_EQ(call.num_samples, 2);
  EXPECT_EQ(call.seq_id, 0);
  EXPECT_EQ(call.seed, 3U);
  EXPECT_THAT(call.settings.prompt_ids, ElementsAre(5, 6, 7));
  EXPECT_EQ(call.settings.max_new_tokens, 4);
  EXPECT_EQ(call.settings.sampling.temperature, 0.5F);
  EXPECT_EQ(call.settings.sampling.top_k, 40);
  EXPECT_EQ(call.settings.sampling.top_p, 0.9F);
  EXPECT_THAT(call.settings.stop_strings, ElementsAre("\n", "END"));
  EXPECT_TRUE(call.settings.stop_ids.empty());
  EXPECT_TRUE(call.settings.prompt_logprobs);
  EXPECT_EQ(call.settings.prompt_top_logprobs, 2);
  EXPECT_EQ(call.settings.top_logprobs, 3);
  const auto ids = accepted(tinker::read_sample(golden("asample_1.json"), small_model()));
  EXPECT_THAT(ids.settings.stop_ids, ElementsAre(9, 10));
  const auto plain = accepted(tinker::read_sample(golden("asample_2.json"), small_model()));
  EXPECT_THAT(plain.settings.stop_ids, ElementsAre(99));
  EXPECT_EQ(plain.settings.max_new_tokens, 61);  // the rest of the context
  EXPECT_EQ(plain.settings.sampling.top_k, 0);
  EXPECT_EQ(plain.prompt_logprobs_last_n, 1U);
  EXPECT_FALSE(plain.seed.has_value());
}

TEST(TinkerCallsTest, RefusedFieldsAreNamed) {
  const auto sample = [](const std::string& members) {
    return refusal(tinker::read_sample(
        R"({"sampling_session_id": "s", "seq_id": 0, "sampling_params": {},
            "prompt": {"chunks": [{"tokens": [1, 2], "type": "encoded_text"}]})" +
            members + "}",
        small_model()));
  };
  EXPECT_THAT(sample(R"(, "target_prompt_logprobs": {})"),
              HasSubstr("target_prompt_logprobs: not supported"));
  EXPECT_THAT(sample(R"(, "prompt_alt_tokens_k": 2)"),
              HasSubstr("prompt_alt_tokens_k: not supported"));
  EXPECT_THAT(sample(R"(, "record_stability_info": true)"),
              HasSubstr("record_stability_info: not supported"));
  EXPECT_THAT(sample(R"(, "num_samples": 0)"), HasSubstr("num_samples: must be an integer from 1"));
  EXPECT_THAT(sample(R"(, "topk_sample_logprobs": 65)"), HasSubstr("topk_sample_logprobs: must"));
  EXPECT_THAT(sample(R"(, "prompt_logprobs_last_n": 1)"),
              HasSubstr("prompt_logprobs_last_n: needs prompt_logprobs"));
  EXPECT_THAT(sample(R"(, "prompt_logprobs": true, "prompt_logprobs_last_n": 2)"),
              HasSubstr("prompt_logprobs_last_n: must be an integer from 1 to 1"));
  EXPECT_THAT(sample(R"(, "size": 3)"), HasSubstr("size: unknown field"));
  const auto parts = [](const std::string& chunk, const std::string& params) {
    return refusal(tinker::read_sample(R"({"sampling_session_id": "s", "seq_id": 0,
        "sampling_params": {)" + params + R"(}, "prompt": {"chunks": [)" +
                                           chunk + "]}}",
                                       small_model()));
  };
  const std::string tokens = R"({"tokens": [1], "type": "encoded_text"})";
  EXPECT_EQ(parts(tokens + R"(, {"type": "image", "data": "", "format": "png"})", ""),
            "prompt.chunks[1].type: the chunk type \"image\" is not supported, only tokens are");
  EXPECT_THAT(parts(R"({"tokens": [100]})", ""), HasSubstr("prompt.chunks[0].tokens: must be"));
  EXPECT_THAT(parts("", ""), HasSubstr("prompt.chunks: must have at least one token"));
  EXPECT_THAT(parts(tokens, R"("temperature": -1)"), HasSubstr("sampling_params.temperature: "));
  EXPECT_THAT(parts(tokens, R"("temperature": 1e-300)"),
              HasSubstr("sampling_params.temperature: must be 0 or at least 0.001"));
  EXPECT_THAT(parts(tokens, R"("stop": [""])"), HasSubstr("sampling_params.stop: "));
  EXPECT_THAT(parts(tokens, R"("min_p": 0.1)"), HasSubstr("sampling_params.min_p: unknown field"));
  EXPECT_THAT(parts(tokens, R"("max_tokens": 0)"), HasSubstr("sampling_params.max_tokens: "));
}

TEST(TinkerCallsTest, RefusedModelsAndCheckpointsAreNamed) {
  const auto model = [](const std::string& members) {
    return refusal(tinker::read_create_model(
        R"({"session_id": "s", "model_seq_id": 0, "base_model": "b")" + members + "}"));
  };
  EXPECT_THAT(model(""), HasSubstr("lora_config: missing"));
  EXPECT_THAT(model(R"(, "lora_config": {"rank": 0})"), HasSubstr("lora_config.rank: must"));
  EXPECT_THAT(model(R"(, "lora_config": {"rank": 1, "train_attn": false, "train_mlp": false,
                         "train_unembed": false})"),
              HasSubstr("lora_config.train_attn: one of"));
  EXPECT_THAT(model(R"(, "lora_config": {"rank": 1}, "optimizer_config": {"type": "dimuon"})"),
              HasSubstr("optimizer_config.type: must be \"adamw\""));
  EXPECT_THAT(model(R"(, "lora_config": {"rank": 1}, "user_metadata": {"a": 1})"),
              HasSubstr("user_metadata.a: must be a string"));
  const auto save = [](CheckpointKind kind, const std::string& members) {
    return refused(
        tinker::read_save_weights(kind, R"({"model_id": "m", "seq_id": 4)" + members + "}"));
  };
  const tinker::RefusedCall path = save(CheckpointKind::kTraining, R"(, "path": "../a")");
  EXPECT_THAT(path.error.message, HasSubstr("path: must have up to 128"));
  EXPECT_EQ(path.turn.value_or(tinker::QueueTurn()).seq_id, 4);
  EXPECT_THAT(save(CheckpointKind::kTraining, R"(, "path": "a", "ttl_seconds": 60)").error.message,
              HasSubstr("ttl_seconds: must be an integer from 3600"));
  EXPECT_THAT(save(CheckpointKind::kSampler, R"(, "path": "a", "kind": "inflight")").error.message,
              HasSubstr("kind: must be \"snapshot\""));
  EXPECT_THAT(save(CheckpointKind::kSampler, "").error.message, HasSubstr("path: missing"));
  EXPECT_THAT(save(CheckpointKind::kExternal,
                   R"(, "path": "a", "age_encryption_recipients": ["ssh-ed25519 AAAA"])")
                  .error.message,
              HasSubstr("age_encryption_recipients[0]: must be a recipient age1..."));
  EXPECT_FALSE(save(CheckpointKind::kTraining, R"(, "seq_id": 5)").turn.has_value());  // twice
}

TEST(TinkerCallsTest, PathsOfCheckpointsAreChecked) {
  for (const std::string bad :
       {"", "tinker://", "tinker://a/weights", "tinker://a/weights/../b", "file://a/weights/b",
        "tinker://a/other/b", "tinker://a/weights/b/c", "tinker://../weights/b",
        "tinker://a/weights/", "tinker:///weights/b", "tinker://a b/weights/c"}) {
    EXPECT_FALSE(tinker::parse_checkpoint_path(bad).ok()) << bad;
  }
  for (const std::string good : {"tinker://s:train:0/weights/a", "tinker://x/sampler_weights/0001",
                                 "tinker://x/external_weights/a.b-c_d"}) {
    const auto path = tinker::parse_checkpoint_path(good);
    ASSERT_TRUE(path.ok()) << good;
    EXPECT_EQ(tinker::to_text(path.value()), good);
  }
}

TEST(TinkerCallsTest, ReadsPolls) {
  const auto poll = accepted(tinker::read_retrieve_futures(
      R"({"target": {"type": "sampling_session", "sampling_session_id": "s",
          "cloned_sampler_id": 3}, "prev_cursor": 5, "retrieved_request_ids": ["a"]})"));
  EXPECT_EQ(poll.cloned_sampler_id, 3);
  EXPECT_EQ(poll.previous_cursor, 5);
  EXPECT_THAT(poll.retrieved, ElementsAre("a"));
  EXPECT_EQ(accepted(tinker::read_name("request_id",
                                       R"({"request_id": "f", "allow_metadata_only": true})")),
            "f");
  EXPECT_THAT(refusal(tinker::read_name("request_id", R"({"request_id": "f", "x": 1})")),
              HasSubstr("x: unknown field"));
  EXPECT_EQ(accepted(tinker::read_ttl(R"({"ttl_seconds": null})")), std::nullopt);
  EXPECT_EQ(accepted(tinker::read_ttl(R"({"ttl_seconds": 7200})")), 7200);
}

// -- encryption -----------------------------------------------------------------------------------

TEST(TinkerCallsTest, EncryptsAsAgeDoes) {
  const auto recipient =
      tinker::parse_age_recipient("age1anf444dz60eqmxheac8x33nfj5vxt54amu8hfahzpxyq955wdgmq7cu77y");
  ASSERT_TRUE(recipient.ok());
  unsigned char next = 0;
  const auto counting = [&](std::span<unsigned char> bytes) {
    for (unsigned char& byte : bytes) {
      byte = ++next;
    }
  };
  const std::vector<tinker::AgeRecipient> twice = {recipient.value(), recipient.value()};
  // The file is one that another implementation of age decrypts; see the README next to it.
  EXPECT_EQ(tinker::encrypt_age(std::string(70000, 'x'), twice, counting), golden("encrypted.age"));
}

TEST(TinkerCallsTest, RecipientsAreChecked) {
  const std::string good = "age1anf444dz60eqmxheac8x33nfj5vxt54amu8hfahzpxyq955wdgmq7cu77y";
  EXPECT_TRUE(tinker::parse_age_recipient(good).ok());
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = bad[i] == 'q' ? 'p' : 'q';
    EXPECT_FALSE(tinker::parse_age_recipient(bad).ok()) << bad;
  }
  EXPECT_FALSE(tinker::parse_age_recipient("").ok());
  EXPECT_FALSE(tinker::parse_age_recipient(good + "q").ok());
}

// -- results --------------------------------------------------------------------------------------

TEST(TinkerCallsTest, WritesTheBytesThatThePackageWrites) {
  EXPECT_EQ(
      tinker::forward_result(std::vector<std::vector<float>>{{0, -0.5F, -1.25F}, {0, -2}}, 1.75),
      golden("forward_backward_output.pb"));
  tinker::SampleCall call;
  call.settings.prompt_ids = {1, 2};
  call.settings.prompt_logprobs = true;
  call.settings.prompt_top_logprobs = 1;
  call.settings.top_logprobs = 2;
  engines::RolloutResult first;
  first.finish_reason = engines::FinishReason::kStop;
  first.response_ids = {3, 4};
  first.behavior_logprobs = {-0.5F, -1.0F};
  first.top_logprobs = {{3, -0.5F}, {9, -2.0F}, {4, -1.0F}, {8, -3.0F}};
  first.prompt_logprobs = {-0.75F};
  first.prompt_top_logprobs = {{7, -0.125F}};
  first.cached_tokens = 6;
  const std::string one = tinker::sample_result(call, std::vector{first});
  engines::RolloutResult second;
  second.finish_reason = engines::FinishReason::kLength;
  second.response_ids = {5};
  second.behavior_logprobs = {-0.25F};
  call.settings.top_logprobs = 0;
  const std::string two = tinker::sample_result(call, std::vector{second});
  // The stored response has alternatives in its first sequence only.
  const std::string expected = golden("sample_response.pb");
  const std::size_t split = expected.find(two.substr(0, two.find(packed<float>({-0.25F})) + 4));
  ASSERT_NE(split, std::string::npos);
  const std::size_t length = two.find(packed<float>({-0.25F})) + 4;
  EXPECT_EQ(one, expected.substr(0, split) + expected.substr(split + length));
}

TEST(TinkerCallsTest, OnlyTheLastPromptTokensAreScoredIfAsked) {
  tinker::SampleCall call;
  call.settings.prompt_ids = {1, 2, 3, 4};
  call.settings.prompt_logprobs = true;
  call.prompt_logprobs_last_n = 2;
  engines::RolloutResult result;
  result.prompt_logprobs = {-1, -2, -3};
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(tinker::sample_result(call, std::vector{result}),
              HasSubstr(packed<float>({nan, nan, -2, -3})));
}

TEST(TinkerCallsTest, DecompressionIsBounded) {
  const std::string body = golden("forward_backward_8.pb.zst");
  const std::string plain = tinker::decompress_zstd(body, 1000).value();
  EXPECT_EQ(tinker::decompress_zstd(body, plain.size()).value(), plain);
  EXPECT_EQ(tinker::decompress_zstd(body, plain.size() - 1).status().code(),
            Errc::kInvalidArgument);
  EXPECT_EQ(tinker::decompress_zstd(body + body, 1000).value(), plain + plain);  // two frames
  for (std::size_t size = 0; size < body.size(); ++size) {
    EXPECT_EQ(tinker::decompress_zstd(body.substr(0, size), 1000).status().code(),
              Errc::kCorruptData)
        << size;
  }
}

}  // namespace
}  // namespace tidemill::test
