// SPDX-License-Identifier: Apache-2.0
// `tidemill generate`: generates responses to prompts.
#include <CLI/App.hpp>
#include <algorithm>
#include <limits>
#include <ostream>

#include "engines/sampling/stop_matcher.hpp"
#include "engines/tokenizer/tokenizer.hpp"
#include "launcher/commands/commands.hpp"
#include "launcher/models/model_arguments.hpp"
#include "launcher/models/model_path.hpp"
#include "launcher/models/ordered_rollouts.hpp"
#include "launcher/models/prompt_reader.hpp"
#include "launcher/option_checks.hpp"

namespace tidemill::launcher {
namespace {

using engines::RolloutRequest;
using engines::RolloutResult;
using engines::SpecialTokenText;
using engines::Tokenizer;

constexpr std::uint64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();

class GenerateCommand final : public Command {
public:
  [[nodiscard]] std::string name() const override { return "generate"; }
  [[nodiscard]] std::string summary() const override { return "Generates responses to prompts"; }
  [[nodiscard]] std::string example() const override {
    return "tidemill generate models/my-model \"12+30=\" --greedy";
  }

  void declare(CLI::App& app) override {
    model_.declare(app);
    auto* prompt = app.add_option("PROMPT", prompt_, "A prompt, instead of --input")->type_name("");
    app.add_option("--input", input_,
                   "JSON lines {\"ids\": [...]}, {\"prompt\": ...} or {\"messages\": [...]}; - is "
                   "stdin")
        ->type_name("FILE")
        ->excludes(prompt);
    form_.declare(app);
    auto* longest =
        app.add_option("--max-new-tokens", max_new_tokens_,
                       "Maximum length of a response; the model's context limits it, too")
            ->type_name("N")
            ->capture_default_str();
    accept_integers(*longest, {1, kMaxInt32});
    declare_sampling(app);
    app.add_option("--stop", stops_, "End a response once it contains this text; may be repeated")
        ->type_name("TEXT")
        ->allow_extra_args(false);
    app.add_flag("--ignore-eos", ignore_eos_, "Continue after the model's end tokens");
  }

  [[nodiscard]] Status run(Session& session) override {
    if (prompt_.empty() && input_.empty()) {
      return invalid_argument("generate: needs PROMPT or --input FILE");
    }
    TIDEMILL_RETURN_IF_ERROR(check_options());
    TIDEMILL_ASSIGN_OR_RETURN(const std::unique_ptr<LineReader> lines, open_lines());
    TIDEMILL_RETURN_IF_ERROR(check_model_path(model_.path()));
    TIDEMILL_ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::load(model_.path()));
    TIDEMILL_ASSIGN_OR_RETURN(const OpenedModel model,
                              model_.open(session.log, [tokenizer](std::int32_t id) {
                                return std::string(tokenizer.token_bytes(id));
                              }));
    PromptReader prompts(model_.path(), tokenizer, model.config.vocab_size, form_);
    RolloutWindow window;
    window.vocab_size = model.config.vocab_size;
    RolloutWork work;
    work.request = [&](const InputLine& line) -> Result<RolloutRequest> {
      TIDEMILL_ASSIGN_OR_RETURN(auto ids, prompts.read(line));
      return request(std::move(ids), model, line.location);
    };
    work.finish = [&](std::uint64_t /*index*/, const RolloutResult& result) {
      return write_response(result, tokenizer, session);
    };
    return run_in_order(model.runtime->rollout(), *lines, window, work);
  }

private:
  void declare_sampling(CLI::App& app) {
    auto* greedy = app.add_flag("--greedy", greedy_, "Always choose the most probable token");
    const auto add = [&app](const char* name, auto& value, const char* help) {
      return app.add_option(name, value, help)->capture_default_str();
    };
    auto* temperature =
        add("--temperature", sampling_.temperature, "Divides the logits; 0: greedy");
    accept_numbers(*temperature->type_name("T")->excludes(greedy), {.min = 0.0F});
    auto* top_k =
        add("--top-k", sampling_.top_k, "Sample only from the K most probable tokens; 0: all");
    accept_integers(*top_k->type_name("K"), {0, kMaxInt32});
    auto* top_p = add("--top-p", sampling_.top_p,
                      "Sample only from the smallest set of most probable tokens whose total "
                      "probability reaches this; 1: all");
    accept_numbers(*top_p->type_name("P"), {.min = 0.0F, .min_excluded = true, .max = 1.0F});
    auto* min_p =
        add("--min-p", sampling_.min_p,
            "Sample only tokens that have at least this fraction of the most probable one's "
            "probability; 0: all");
    accept_numbers(*min_p->type_name("P"), {.min = 0.0F, .max = 1.0F});
    auto* seed = add("--seed", seed_,
                     "Seed of the random numbers. The tokens of an input line depend only on the "
                     "seed, the line's number and the line itself");
    accept_integers(*seed->type_name("S"), {0, std::numeric_limits<std::uint64_t>::max()});
  }

  [[nodiscard]] Status check_options() {
    if (greedy_) {
      sampling_.temperature = 0.0F;
    }
    if (sampling_.temperature > 0.0F && sampling_.temperature < engines::kMinTemperature) {
      return invalid_argument("--temperature: must be 0 or at least 0.001");
    }
    if (const auto stops = engines::StopMatcher::create(stops_); !stops.ok()) {
      return stops.status().with_context("--stop");
    }
    return {};
  }

  [[nodiscard]] Result<std::unique_ptr<LineReader>> open_lines() const {
    if (!input_.empty()) {
      return LineReader::open(input_);
    }
    return LineReader::of_text("PROMPT", Json(Json::Object{{"prompt", prompt_}}).to_line());
  }

  [[nodiscard]] Result<RolloutRequest> request(std::vector<std::int32_t> ids,
                                               const OpenedModel& model,
                                               const std::string& location) const {
    const auto size = static_cast<std::int64_t>(ids.size());
    const std::int64_t room = model.config.max_positions - size;
    if (room < 1) {
      return invalid_argument(
          location + ": the prompt has " + std::to_string(size) +
          " tokens, which leaves no room for a response in the model's context of " +
          std::to_string(model.config.max_positions));
    }
    RolloutRequest made;
    made.prompt_ids = std::move(ids);
    made.sampling = sampling_;
    made.seed = seed_;
    made.max_new_tokens = static_cast<std::int32_t>(std::min<std::int64_t>(max_new_tokens_, room));
    if (!ignore_eos_) {
      made.stop_ids = model.generation.eos_token_ids.empty() ? model.config.eos_token_ids
                                                             : model.generation.eos_token_ids;
    }
    made.stop_strings = stops_;
    return made;
  }

  [[nodiscard]] Status write_response(const RolloutResult& result, const Tokenizer& tokenizer,
                                      Session& session) const {
    const std::string text = tokenizer.decode(result.response_ids, SpecialTokenText::kDrop);
    if (input_.empty() && session.form == OutputForm::kText) {
      session.out << text << '\n';
      return {};
    }
    Json::Array logprobs;
    logprobs.reserve(result.behavior_logprobs.size());
    for (const float value : result.behavior_logprobs) {
      logprobs.emplace_back(double{value});
    }
    return write_line(session.out,
                      Json::Object{{"ids", ids_json(result.response_ids)},
                                   {"text", text},
                                   {"logprobs", std::move(logprobs)},
                                   {"finish_reason", finish_reason_name(result.finish_reason)}});
  }

  ModelArguments model_;
  std::string prompt_;
  PromptForm form_;
  std::string input_;
  std::int32_t max_new_tokens_ = 256;
  engines::SamplingOptions sampling_;
  bool greedy_ = false;
  std::uint64_t seed_ = 0;
  std::vector<std::string> stops_;
  bool ignore_eos_ = false;
};

}  // namespace

std::unique_ptr<Command> make_generate_command() {
  return std::make_unique<GenerateCommand>();
}

}  // namespace tidemill::launcher
