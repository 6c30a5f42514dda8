// SPDX-License-Identifier: Apache-2.0
// `tidemill generate`: a model's answers to prompts.
#include <CLI/App.hpp>
#include <algorithm>
#include <limits>
#include <ostream>

#include "engines/sampling/stop_matcher.hpp"
#include "engines/tokenizer/tokenizer.hpp"
#include "launcher/commands/commands.hpp"
#include "launcher/models/model_arguments.hpp"
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
  [[nodiscard]] std::string summary() const override { return "Lets a model answer prompts"; }
  [[nodiscard]] std::string example() const override {
    return "tidemill generate models/my-model \"12+30=\" --greedy";
  }

  void declare(CLI::App& app) override {
    model_.declare(app);
    auto* prompt =
        app.add_option("PROMPT", prompt_, "A text to continue, in place of --input")->type_name("");
    app.add_option("--input", input_,
                   "JSON lines {\"ids\": [...]}, {\"prompt\": ...} or {\"messages\": [...]}; - is "
                   "stdin")
        ->type_name("FILE")
        ->excludes(prompt);
    form_.declare(app);
    auto* longest = app.add_option("--max-new-tokens", max_new_tokens_,
                                   "The longest answer, within the model's context")
                        ->type_name("N")
                        ->capture_default_str();
    take_integers(*longest, {1, kMaxInt32});
    declare_sampling(app);
    app.add_option("--stop", stops_, "End an answer once it contains this text; may be repeated")
        ->type_name("TEXT")
        ->allow_extra_args(false);
    app.add_flag("--ignore-eos", ignore_eos_, "Go on after the model's end tokens");
  }

  [[nodiscard]] Status run(Session& session) override {
    if (prompt_.empty() && input_.empty()) {
      return invalid_argument("generate: needs PROMPT or --input FILE");
    }
    TIDEMILL_RETURN_IF_ERROR(check_options());
    TIDEMILL_ASSIGN_OR_RETURN(const std::unique_ptr<LineReader> lines, open_lines());
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
      return request(std::move(ids), model, line.place);
    };
    work.answer = [&](std::uint64_t /*index*/, const RolloutResult& result) {
      return answer(result, tokenizer, session);
    };
    return run_in_order(model.runtime->rollout(), *lines, window, work);
  }

private:
  void declare_sampling(CLI::App& app) {
    auto* greedy = app.add_flag("--greedy", greedy_, "Take the most probable token every time");
    const auto add = [&app](const char* name, auto& value, const char* help) {
      return app.add_option(name, value, help)->capture_default_str();
    };
    auto* temperature =
        add("--temperature", sampling_.temperature, "Divides the logits; 0 is greedy");
    take_numbers(*temperature->type_name("T")->excludes(greedy), {.least = 0.0F});
    auto* top_k = add("--top-k", sampling_.top_k, "Only the K most probable tokens; 0: all");
    take_integers(*top_k->type_name("K"), {0, kMaxInt32});
    auto* top_p =
        add("--top-p", sampling_.top_p, "Only the most probable tokens of this mass; 1: all");
    take_numbers(*top_p->type_name("P"), {.least = 0.0F, .least_excluded = true, .most = 1.0F});
    auto* min_p = add("--min-p", sampling_.min_p,
                      "Only tokens of at least this share of the best one's probability; 0: all");
    take_numbers(*min_p->type_name("P"), {.least = 0.0F, .most = 1.0F});
    auto* seed = add("--seed", seed_,
                     "Line N of the input gets the same tokens for the same seed, whatever the "
                     "other lines are");
    take_integers(*seed->type_name("S"), {0, std::numeric_limits<std::uint64_t>::max()});
  }

  [[nodiscard]] Status check_options() {
    if (greedy_) {
      sampling_.temperature = 0.0F;
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
                                               const std::string& place) const {
    const auto size = static_cast<std::int64_t>(ids.size());
    const std::int64_t room = model.config.max_positions - size;
    if (room < 1) {
      return invalid_argument(place + ": the prompt has " + std::to_string(size) +
                              " tokens, but the context of the model has room for " +
                              std::to_string(model.config.max_positions) + ", the answer included");
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

  [[nodiscard]] Status answer(const RolloutResult& result, const Tokenizer& tokenizer,
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
