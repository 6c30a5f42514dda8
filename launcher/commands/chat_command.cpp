// SPDX-License-Identifier: Apache-2.0
// `tidemill chat`: a conversation with a model in the terminal.
#include <CLI/App.hpp>
#include <algorithm>
#include <csignal>
#include <iostream>
#include <limits>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <unistd.h>
#include <utility>

#include "base/files/file.hpp"
#include "base/json/json.hpp"
#include "engines/chat/chat_renderer.hpp"
#include "engines/chat/conversation.hpp"
#include "engines/tokenizer/tokenizer.hpp"
#include "launcher/commands/commands.hpp"
#include "launcher/models/model_arguments.hpp"
#include "launcher/models/model_path.hpp"
#include "launcher/option_checks.hpp"
#include "launcher/terminal.hpp"

namespace tidemill::launcher {
namespace {

using engines::FinishReason;
using engines::RolloutRequest;
using engines::RolloutResult;
using engines::Tokenizer;
using engines::chat::ChatRenderer;
using engines::chat::ChatRequest;
using engines::chat::Value;

// State of the signal handler, of which a process has only one.
volatile std::sig_atomic_t interrupted = 0;

void on_interrupt(int /*signal*/) {
  interrupted = 1;
}

// While it lives, Ctrl-C ends a response and not the program.
class InterruptGuard {
public:
  InterruptGuard() {
    interrupted = 0;
    struct sigaction action {};
    action.sa_handler = on_interrupt;
    ::sigaction(SIGINT, &action, &before_);
  }
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
  ~InterruptGuard() { ::sigaction(SIGINT, &before_, nullptr); }

private:
  struct sigaction before_ {};
};

// Prints a response while it is generated.
class PrintingSink final : public engines::RolloutSink {
public:
  PrintingSink(const Tokenizer& tokenizer, std::ostream& out)
      : decoder_(tokenizer, engines::SpecialTokenText::kDrop),
        out_(out),
        letters_(detect_terminal(out).letters) {}

  void on_tokens(const engines::RolloutTokens& tokens) override {
    for (const std::int32_t id : tokens.ids) {
      add(decoder_.push(id));
    }
  }
  void on_rollout(RolloutResult result) override {
    add(decoder_.finish());
    result_ = std::move(result);
  }

  [[nodiscard]] const std::optional<RolloutResult>& result() const { return result_; }
  [[nodiscard]] const std::string& text() const { return text_; }

private:
  void add(const std::string& piece) {
    text_ += piece;
    // Lines stay lines; other control characters of a response must not reach the terminal.
    for (std::size_t begin = 0; begin < piece.size();) {
      const std::size_t end = std::min(piece.find('\n', begin), piece.size());
      out_ << shown_text(piece.substr(begin, end - begin), letters_)
           << (end < piece.size() ? "\n" : "");
      begin = end + 1;
    }
    out_ << std::flush;
  }

  engines::IncrementalDecoder decoder_;
  std::ostream& out_;
  Letters letters_;
  std::string text_;
  std::optional<RolloutResult> result_;
};

struct Message {
  std::string role;
  std::string content;
};

constexpr std::string_view kHelp =
    "/system TEXT  sets the system message and clears the conversation\n"
    "/reset        clears the conversation\n"
    "/save FILE    writes the conversation as JSON\n"
    "/help         prints this\n"
    "/exit         ends the chat, as Ctrl-D does; Ctrl-C stops a response\n";

class ChatCommand final : public Command {
public:
  [[nodiscard]] std::string name() const override { return "chat"; }
  [[nodiscard]] std::string summary() const override { return "Chats with a model"; }
  [[nodiscard]] std::string example() const override {
    return "tidemill chat runs/quickstart/export --temperature 0";
  }

  void declare(CLI::App& app) override {
    model_.declare(app);
    app.add_option("--system", system_, "The system message")->type_name("TEXT");
    auto* most = app.add_option("--max-new-tokens", max_new_tokens_,
                                "Maximum length of a response; 0: the rest of the context");
    accept_integers(*most->type_name("N")->capture_default_str(),
                    {0, std::numeric_limits<std::int32_t>::max()});
    auto* temperature = app.add_option("--temperature", sampling_.temperature,
                                       "Divides the logits; 0: the most probable token");
    accept_numbers(*temperature->type_name("T")->capture_default_str(), {.min = 0.0F});
    auto* top_p = app.add_option("--top-p", sampling_.top_p,
                                 "Sample only from the smallest set of most probable tokens whose "
                                 "total probability reaches this; 1: all");
    accept_numbers(*top_p->type_name("P")->capture_default_str(),
                   {.min = 0.0F, .min_excluded = true, .max = 1.0F});
    auto* seed = app.add_option("--seed", seed_, "Seed of the random numbers");
    accept_integers(*seed->type_name("S")->capture_default_str(),
                    {0, std::numeric_limits<std::uint64_t>::max()});
  }

  [[nodiscard]] Status run(Session& session) override {
    if (session.form == OutputForm::kJson) {
      return invalid_argument("chat: has no JSON output; use generate --chat");
    }
    if (sampling_.temperature > 0.0F && sampling_.temperature < engines::kMinTemperature) {
      return invalid_argument("--temperature: must be 0 or at least 0.001");
    }
    TIDEMILL_RETURN_IF_ERROR(check_model_path(model_.path()));
    TIDEMILL_ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::load(model_.path()));
    TIDEMILL_ASSIGN_OR_RETURN(const ChatRenderer chat,
                              ChatRenderer::open(model_.path(), tokenizer.config(), std::nullopt));
    TIDEMILL_ASSIGN_OR_RETURN(const OpenedModel model, model_.open(session.log));
    reset();
    const bool prompts = ::isatty(STDIN_FILENO) != 0;
    std::string line;
    for (;;) {
      if (prompts) {
        session.out << "> " << std::flush;
      }
      if (!std::getline(std::cin, line)) {
        break;
      }
      if (line == "/exit") {
        return {};
      }
      const Status status = line.starts_with("/") ? obey(line, session)
                            : line.empty()        ? Status()
                                                  : respond(line, tokenizer, chat, model, session);
      if (!status.ok()) {
        session.err << status.message() << '\n';
      }
    }
    session.out << '\n';
    return {};
  }

private:
  void reset() {
    messages_.clear();
    if (!system_.empty()) {
      messages_.push_back({"system", system_});
    }
  }

  // Carries out a line that begins with a slash.
  [[nodiscard]] Status obey(const std::string& line, Session& session) {
    const std::size_t space = line.find(' ');
    const std::string verb = line.substr(0, space);
    const std::string rest = space == std::string::npos ? "" : line.substr(space + 1);
    if (verb == "/system") {
      system_ = rest;
      reset();
    } else if (verb == "/reset") {
      reset();
    } else if (verb == "/save") {
      return save(rest, session);
    } else if (verb == "/help") {
      session.out << kHelp;
    } else {
      return invalid_argument(verb + ": unknown command; /help lists the commands");
    }
    return {};
  }

  [[nodiscard]] Status save(const std::string& path, Session& session) const {
    if (path.empty()) {
      return invalid_argument("/save: needs a file");
    }
    Json::Array all;
    for (const Message& message : messages_) {
      all.push_back(Json::Object{{"role", message.role}, {"content", message.content}});
    }
    PosixFileSystem files;
    TIDEMILL_RETURN_IF_ERROR(
        write_file(files, path, Json(Json::Object{{"messages", std::move(all)}}).to_line()));
    session.out << "saved in " << path << '\n';
    return {};
  }

  // Adds a message of the user and the model's response. After an error, adds neither.
  [[nodiscard]] Status respond(const std::string& line, const Tokenizer& tokenizer,
                               const ChatRenderer& chat, const OpenedModel& model,
                               Session& session) {
    messages_.push_back({"user", line});
    Status status = generate(tokenizer, chat, model, session);
    if (!status.ok()) {
      messages_.pop_back();
    }
    return status;
  }

  [[nodiscard]] Status generate(const Tokenizer& tokenizer, const ChatRenderer& chat,
                                const OpenedModel& model, Session& session) {
    ChatRequest request;
    engines::chat::List list;
    for (const Message& message : messages_) {
      list.push_back(engines::chat::make_message(message.role.c_str(), message.content));
    }
    request.messages = Value::sequence(std::move(list));
    request.ending = engines::chat::Ending::kGenerationPrompt;
    TIDEMILL_ASSIGN_OR_RETURN(const std::string text, chat.render(std::move(request)));
    RolloutRequest rollout;
    rollout.id = SampleId{messages_.size()};
    TIDEMILL_ASSIGN_OR_RETURN(rollout.prompt_ids,
                              tokenizer.encode(text, engines::AddSpecialTokens::kNo));
    const auto size = static_cast<std::int64_t>(rollout.prompt_ids.size());
    const std::int64_t room = model.config.max_positions - size;
    if (room < 1) {
      return invalid_argument("the conversation has " + std::to_string(size) +
                              " tokens, which fills the model's context of " +
                              std::to_string(model.config.max_positions) + "; /reset clears it");
    }
    rollout.sampling = sampling_;
    rollout.seed = seed_;
    rollout.max_new_tokens =
        static_cast<std::int32_t>(max_new_tokens_ == 0 ? room : std::min(room, max_new_tokens_));
    rollout.stop_ids = model.generation.eos_token_ids.empty() ? model.config.eos_token_ids
                                                              : model.generation.eos_token_ids;
    PrintingSink sink(tokenizer, session.out);
    TIDEMILL_RETURN_IF_ERROR(run(std::move(rollout), model.runtime->rollout(), sink));
    session.out << '\n';
    if (sink.result()->finish_reason == FinishReason::kFailed) {
      return {Errc::kInternal, sink.result()->error};
    }
    messages_.push_back({"assistant", sink.text()});
    return {};
  }

  // Generates until the response ends or the user interrupts it.
  [[nodiscard]] static Status run(RolloutRequest request, engines::RolloutEngine& engine,
                                  PrintingSink& sink) {
    const InterruptGuard guard;
    const SampleId id = request.id;
    TIDEMILL_RETURN_IF_ERROR(engine.submit(std::move(request), sink));
    while (!sink.result().has_value()) {
      if (interrupted != 0) {
        engine.cancel(id);
        break;
      }
      if (Status stepped = engine.step({}).status(); !stepped.ok()) {
        engine.cancel(id);
        return stepped;
      }
    }
    return {};
  }

  ModelArguments model_;
  std::string system_;
  std::int64_t max_new_tokens_ = 0;
  engines::SamplingOptions sampling_;
  std::uint64_t seed_ = 0;
  std::vector<Message> messages_;
};

}  // namespace

std::unique_ptr<Command> make_chat_command() {
  return std::make_unique<ChatCommand>();
}

}  // namespace tidemill::launcher
