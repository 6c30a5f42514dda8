// SPDX-License-Identifier: Apache-2.0
// `tidemill score`: computes the log-probabilities that a model gives to token sequences.
#include <CLI/App.hpp>

#include "launcher/commands/commands.hpp"
#include "launcher/models/logits_file.hpp"
#include "launcher/models/model_arguments.hpp"
#include "launcher/models/ordered_rollouts.hpp"
#include "launcher/models/prompt_reader.hpp"

namespace tidemill::launcher {
namespace {

class ScoreCommand final : public Command {
public:
  [[nodiscard]] std::string name() const override { return "score"; }
  [[nodiscard]] std::string summary() const override {
    return "Computes the log-probability of every token of given sequences";
  }
  [[nodiscard]] std::string example() const override {
    return "tidemill score models/my-model --input ids.jsonl --logits logits.safetensors";
  }

  void declare(CLI::App& app) override {
    model_.declare(app);
    app.add_option("--input", input_,
                   "JSON lines {\"ids\": [...]}, {\"prompt\": ...} or {\"messages\": [...]}; - is "
                   "stdin")
        ->required()
        ->type_name("FILE");
    form_.ending = engines::chat::Ending::kPlain;
    form_.declare(app);
    app.add_option("--logits", logits_,
                   "Also write the raw logits: f32 tensors 0, 1, ... (tokens, vocabulary), one for "
                   "each line of the input, which may have at most " +
                       std::to_string(LogitsFile::kMaxTensors) + " lines")
        ->type_name("OUT.safetensors");
  }

  [[nodiscard]] Status run(Session& session) override {
    TIDEMILL_ASSIGN_OR_RETURN(const std::unique_ptr<LineReader> lines, LineReader::open(input_));
    TIDEMILL_ASSIGN_OR_RETURN(const OpenedModel model, model_.open(session.log));
    PosixFileSystem files;
    std::optional<LogitsFile> logits;
    if (!logits_.empty()) {
      logits.emplace(files, logits_);
    }
    RolloutWindow window;
    window.vocab_size = model.config.vocab_size;
    std::optional<PromptReader> texts;  // opened on demand: lines with ids need no tokenizer
    RolloutWork work;
    work.request = [&](const InputLine& line) { return request(line, window.vocab_size, texts); };
    work.finish = [&](std::uint64_t /*index*/, const engines::RolloutResult& result) -> Status {
      if (logits.has_value()) {
        TIDEMILL_RETURN_IF_ERROR(logits->add(result.prompt_logits, window.vocab_size));
      }
      return write_line(session.out, logprobs_json(result));
    };
    TIDEMILL_RETURN_IF_ERROR(run_in_order(model.runtime->rollout(), *lines, window, work));
    return logits.has_value() ? logits->finish() : Status();
  }

private:
  [[nodiscard]] Result<engines::RolloutRequest> request(const InputLine& line,
                                                        std::int64_t vocab_size,
                                                        std::optional<PromptReader>& texts) const {
    TIDEMILL_ASSIGN_OR_RETURN(const Json object, parse_line(line));
    engines::RolloutRequest made;
    if (object.find("prompt") != nullptr || object.find("messages") != nullptr) {
      if (!texts.has_value()) {
        TIDEMILL_ASSIGN_OR_RETURN(auto tokenizer, engines::Tokenizer::load(model_.path()));
        texts.emplace(model_.path(), std::move(tokenizer), vocab_size, form_);
      }
      TIDEMILL_ASSIGN_OR_RETURN(made.prompt_ids, texts->read(line));
    } else {
      TIDEMILL_ASSIGN_OR_RETURN(auto ids, read_ids(object, line.location));
      if (!ids.has_value()) {
        return invalid_argument(line.location + ": ids: missing");
      }
      if (ids->empty()) {
        return invalid_argument(line.location + ": ids: at least one token is required");
      }
      TIDEMILL_RETURN_IF_ERROR(check_ids(*ids, vocab_size, line.location));
      made.prompt_ids = std::move(*ids);
    }
    made.prompt_logprobs = true;
    made.prompt_logits = !logits_.empty();
    return made;
  }

  // The first token has no context, so its log-probability is null.
  [[nodiscard]] static Json logprobs_json(const engines::RolloutResult& result) {
    Json::Array logprobs;
    logprobs.reserve(result.prompt_logprobs.size() + 1);
    logprobs.emplace_back();
    for (const float value : result.prompt_logprobs) {
      logprobs.emplace_back(double{value});
    }
    return Json::Object{{"logprobs", std::move(logprobs)}};
  }

  ModelArguments model_;
  std::string input_;
  PromptForm form_;
  std::string logits_;
};

}  // namespace

std::unique_ptr<Command> make_score_command() {
  return std::make_unique<ScoreCommand>();
}

}  // namespace tidemill::launcher
