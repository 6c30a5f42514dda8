// SPDX-License-Identifier: Apache-2.0
// Fuzzes the bodies of requests to the HTTP API. The first byte chooses the path.
#include <variant>

#include "actors/gateway/openai/fine_tuning.hpp"
#include "actors/gateway/openai/generation_call.hpp"
#include "actors/gateway/openai/model_list.hpp"
#include "engines/sampling/sampler.hpp"
#include "engines/sampling/stop_matcher.hpp"
#include "tests/actors/gateway/served_model.hpp"
#include "tests/fuzz/target.hpp"

namespace tidemill::fuzz {
namespace {

using actors::openai::ApiError;
using actors::openai::GenerationCall;
using actors::openai::GenerationForm;

void require_error(const ApiError& error) {
  require(error.status == 400, "a bad body is the client's fault");
  require_refusal(invalid_argument(error.message), "");
}

template <class T>
void check_result(const actors::openai::ApiResult<T>& result) {
  if (const auto* error = std::get_if<ApiError>(&result)) {
    require_error(*error);
  }
}

void check_call(const GenerationCall& call, const actors::ServedModel& model) {
  require(!call.prompts.empty() && !call.model.empty(), "a call has a model and a prompt");
  require(call.num_per_prompt >= 1 &&
              static_cast<std::int64_t>(call.num_choices()) <= actors::openai::kMaxChoices,
          "choices are limited");
  require_ok(engines::validate(call.settings.sampling, model.vocab_size), "options are valid");
  require_ok(engines::StopMatcher::create(call.settings.stop_strings).status(), "stops are valid");
  require(call.settings.max_new_tokens >= 0, "lengths are not negative");
  for (const actors::openai::Prompt& prompt : call.prompts) {
    require(!prompt.ids.empty(), "a prompt has tokens");
    require(static_cast<std::int64_t>(prompt.ids.size()) + call.settings.max_new_tokens <=
                model.max_positions,
            "prompt and response fit the context");
    for (const std::int32_t id : prompt.ids) {
      require(id >= 0 && id < model.vocab_size, "ids are in the vocabulary");
    }
  }
}

}  // namespace

void api_request(std::string_view input) {
  static const std::shared_ptr<const actors::ServedModel> model = test::make_served_model();
  const std::string now = "2026-01-02T03:04:05";
  const char path = input.empty() ? 'c' : input.front();
  const std::string_view body = input.empty() ? input : input.substr(1);
  switch (path) {
    case 't': check_result(actors::openai::tokenize(body, *model, now)); return;
    case 'd': check_result(actors::openai::detokenize(body, *model)); return;
    case 'j': check_result(actors::openai::parse_job(body)); return;
    case 'l': check_result(actors::openai::parse_adapter_request(body, true)); return;
    default: break;
  }
  const auto form = path == 'm' ? GenerationForm::kChat : GenerationForm::kCompletion;
  const auto result = actors::openai::parse_generation(form, body, *model, now);
  if (const auto* error = std::get_if<ApiError>(&result)) {
    require_error(*error);
  } else {
    check_call(std::get<GenerationCall>(result), *model);
  }
}

}  // namespace tidemill::fuzz
