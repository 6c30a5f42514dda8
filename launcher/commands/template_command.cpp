// SPDX-License-Identifier: Apache-2.0
// `tidemill template`: renders conversations with a model's chat template.
#include <CLI/App.hpp>
#include <charconv>
#include <ostream>

#include "engines/chat/chat_renderer.hpp"
#include "launcher/commands/commands.hpp"
#include "launcher/models/line_reader.hpp"
#include "launcher/models/model_path.hpp"

namespace tidemill::launcher {
namespace {

// Splits the message of a failed template into the members `error` and `line`.
Json failure_json(const std::string& message) {
  constexpr std::string_view kLine = "line ";
  if (message.starts_with(kLine)) {
    std::int64_t line = 0;
    const char* end = message.data() + message.size();
    const auto [rest, problem] = std::from_chars(message.data() + kLine.size(), end, line);
    if (problem == std::errc() && std::string_view(rest, end).starts_with(": ")) {
      return Json::Object{{"error", std::string(rest + 2, end)}, {"line", line}};
    }
  }
  return Json::Object{{"error", message}};
}

class TemplateCommand final : public Command {
public:
  [[nodiscard]] std::string name() const override { return "template"; }
  [[nodiscard]] std::string summary() const override {
    return "Renders conversations with a model's chat template";
  }
  [[nodiscard]] std::string example() const override {
    return "tidemill template models/my-model --input conversations.jsonl";
  }

  void declare(CLI::App& app) override {
    app.add_option("MODEL", model_, "A directory with a model's tokenizer files, or a GGUF file")
        ->required()
        ->type_name("");
    app.add_option("--template", template_, "A Jinja file to use instead of the model's template")
        ->type_name("FILE");
    app.add_option("--input", input_,
                   "JSON lines {\"messages\": [...], \"add_generation_prompt\": true, ...}; other "
                   "keys are template variables; - is stdin")
        ->required()
        ->type_name("FILE");
  }

  [[nodiscard]] Status run(Session& session) override {
    TIDEMILL_RETURN_IF_ERROR(check_model_path(model_));
    TIDEMILL_ASSIGN_OR_RETURN(engines::TokenizerConfig config,
                              engines::load_tokenizer_config(model_));
    std::optional<std::string> file;
    if (!template_.empty()) {
      file = template_;
    }
    TIDEMILL_ASSIGN_OR_RETURN(const engines::chat::ChatRenderer renderer,
                              engines::chat::ChatRenderer::open(model_, std::move(config), file));
    std::size_t num_lines = 0;
    std::size_t num_failed = 0;
    const Status processed =
        process_lines(input_, session.out, [&](const InputLine& line) -> Result<Json> {
          auto request = engines::chat::ChatRequest::from_json(line.text);
          if (!request.ok()) {
            return request.status().with_context(line.location);
          }
          ++num_lines;
          const auto text = renderer.render(std::move(request).value());
          if (text.ok()) {
            return Json(Json::Object{{"text", text.value()}});
          }
          ++num_failed;
          return failure_json(text.status().message());
        });
    TIDEMILL_RETURN_IF_ERROR(processed);
    if (num_failed > 0) {
      return Status(Errc::kUnavailable, input_ + ": " + std::to_string(num_failed) + " of " +
                                            std::to_string(num_lines) +
                                            " conversations could not be rendered");
    }
    return {};
  }

private:
  std::string model_;
  std::string template_;
  std::string input_;
};

}  // namespace

std::unique_ptr<Command> make_template_command() {
  return std::make_unique<TemplateCommand>();
}

}  // namespace tidemill::launcher
