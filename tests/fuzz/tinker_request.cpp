// SPDX-License-Identifier: Apache-2.0
// Fuzzes the bodies of requests of Tinker's API. The first byte chooses the path: protobuf, plain
// or compressed, or JSON.
#include <cmath>
#include <variant>

#include "actors/gateway/tinker/read_calls.hpp"
#include "base/text/utf8.hpp"
#include "engines/sampling/sampler.hpp"
#include "engines/sampling/stop_matcher.hpp"
#include "tests/fuzz/target.hpp"

namespace tidemill::fuzz {
namespace {

namespace tinker = actors::tinker;
using tinker::CheckpointKind;

void require_refused(const tinker::RefusedCall& call) {
  require(call.error.status == 400 || call.error.status == 415, "a bad body is the client's fault");
  require_refusal(invalid_argument(call.error.message), "");
  require(!find_invalid_utf8(call.error.message).has_value(), "a refusal is UTF-8");
  require(!call.turn.has_value() || (!call.turn->model_id.empty() && call.turn->seq_id >= 1),
          "a turn that is used up is one of a model");
}

void check_all_finite(const std::vector<float>& column) {
  for (const float value : column) {
    require(std::isfinite(value), "columns are finite");
  }
}

void check_sequence(const engines::TrainSequence& sequence, const tinker::ModelLimits& model) {
  const std::size_t length = sequence.ids.size();
  require(length >= 2, "a sequence has a token and its target");
  for (const std::int32_t id : sequence.ids) {
    require(id >= 0 && id < model.vocab_size, "ids are in the vocabulary");
  }
  require(sequence.response_mask.size() == length && sequence.response_mask[0] == 0,
          "token 0 is no target");
  for (const auto* column :
       {&sequence.advantages, &sequence.behavior_logprobs, &sequence.token_weights}) {
    require(column->empty() || column->size() == length, "columns have one value for each token");
    check_all_finite(*column);
  }
}

void check(const tinker::ForwardCall& call, const tinker::ModelLimits& model) {
  require(!call.turn.model_id.empty() && call.turn.seq_id >= 1, "a call has its turn");
  require(!call.sequences.empty(), "a call has data");
  require(std::isfinite(call.loss.ratio_low) && std::isfinite(call.loss.ratio_high) &&
              call.loss.ratio_low <= call.loss.ratio_high && std::isfinite(call.loss.beta),
          "the parameters of a loss are valid");
  for (const engines::TrainSequence& sequence : call.sequences) {
    check_sequence(sequence, model);
  }
}

void check(const tinker::SampleCall& call, const tinker::ModelLimits& model) {
  require(call.num_samples >= 1 && call.num_samples <= tinker::kMaxSamples, "samples are limited");
  require_ok(engines::validate(call.settings.sampling, model.vocab_size), "options are valid");
  require_ok(engines::StopMatcher::create(call.settings.stop_strings).status(), "stops are valid");
  require(!call.settings.prompt_ids.empty(), "a prompt has tokens");
  require(call.settings.max_new_tokens >= 0 &&
              static_cast<std::int64_t>(call.settings.prompt_ids.size()) +
                      call.settings.max_new_tokens <=
                  model.max_positions,
          "prompt and response fit the context");
}

void check(const tinker::CreateModel& call, const tinker::ModelLimits& /*model*/) {
  require(call.lora.rank >= 1 && call.lora.rank <= tinker::kMaxRank, "ranks are limited");
}

void check(const tinker::OptimStepCall& call, const tinker::ModelLimits& /*model*/) {
  require(call.turn.seq_id >= 1 && std::isfinite(call.step.learning_rate.value_or(0.0)) &&
              std::isfinite(call.step.epsilon.value_or(1.0)) &&
              call.step.beta1.value_or(0.0) < 1.0 && call.step.beta2.value_or(0.0) < 1.0,
          "the parameters of a step are valid");
}

template <class T>
void check(const T& /*call*/, const tinker::ModelLimits& /*model*/) {}

template <class T>
void check_result(const tinker::CallResult<T>& result, const tinker::ModelLimits& model) {
  if (const auto* refused = std::get_if<tinker::RefusedCall>(&result)) {
    require_refused(*refused);
  } else {
    check(std::get<T>(result), model);
  }
}

}  // namespace

void tinker_request(std::string_view input) {
  const tinker::ModelLimits model{100, 64, 64, {99}};
  const char path = input.empty() ? 'f' : input.front();
  const std::string_view body = input.empty() ? input : input.substr(1);
  switch (path) {
    case 'z': check_result(tinker::read_forward(body, "zstd", model), model); return;
    case 's': check_result(tinker::read_create_session(body), model); return;
    case 'm': check_result(tinker::read_create_model(body), model); return;
    case 'l': check_result(tinker::read_load_weights(body), model); return;
    case 'w':
      check_result(tinker::read_save_weights(CheckpointKind::kTraining, body), model);
      return;
    case 'p':
      check_result(tinker::read_save_weights(CheckpointKind::kSampler, body), model);
      return;
    case 'e':
      check_result(tinker::read_save_weights(CheckpointKind::kExternal, body), model);
      return;
    case 'o': check_result(tinker::read_optim_step(body), model); return;
    case 'c': check_result(tinker::read_create_sampling_session(body), model); return;
    case 'a': check_result(tinker::read_sample(body, model), model); return;
    case 'r': check_result(tinker::read_retrieve_futures(body), model); return;
    case 'n': check_result(tinker::read_name("model_id", body), model); return;
    case 't': check_result(tinker::read_ttl(body), model); return;
    default: check_result(tinker::read_forward(body, "", model), model); return;
  }
}

}  // namespace tidemill::fuzz
