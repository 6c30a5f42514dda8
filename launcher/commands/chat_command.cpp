// SPDX-License-Identifier: Apache-2.0
// `tidemill chat`: a conversation with a model in the terminal.
#include <CLI/App.hpp>
#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <ostream>
#include <string>
#include <string_view>
#include <unistd.h>
#include <utility>

#include "base/files/file.hpp"
#include "base/json/json.hpp"
#include "launcher/chat/local_chat.hpp"
#include "launcher/chat/remote_chat.hpp"
#include "launcher/commands/commands.hpp"
#include "launcher/models/model_arguments.hpp"
#include "launcher/option_checks.hpp"

namespace tidemill::launcher {
namespace {

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

constexpr std::string_view kHelp =
    "/system TEXT  sets the system message and clears the conversation\n"
    "/reset        clears the conversation\n"
    "/save FILE    writes the conversation as JSON\n"
    "/help         prints this\n"
    "/exit         ends the chat, as Ctrl-D does; Ctrl-C stops a response\n";

class ChatCommand final : public Command {
public:
  [[nodiscard]] std::string name() const override { return "chat"; }
  [[nodiscard]] std::string summary() const override {
    return "Chats with a model or with a server of OpenAI's API";
  }
  [[nodiscard]] std::string example() const override {
    return "tidemill chat runs/quickstart/export --temperature 0";
  }

  void declare(CLI::App& app) override {
    app_ = &app;
    model_.declare(app);
    app.get_option("MODEL")->description(
        "A model directory in the Hugging Face layout, a GGUF file, or a server's URL "
        "(http://HOST:PORT)");
    app.add_option("--model", remote_.model,
                   "With a URL: the model; without it, the first that the server lists")
        ->type_name("NAME");
    app.add_option("--api-key", remote_.api_key,
                   "With a URL: the server's API key; without it, that of the environment's "
                   "TIDEMILL_API_KEY")
        ->type_name("KEY");
    auto* timeout = app.add_option("--timeout", timeout_seconds_,
                                   "With a URL: longest wait for the next part of a response, in "
                                   "seconds");
    accept_integers(*timeout->type_name("S")->capture_default_str(), {1, kMaxTimeoutSeconds});
    app.add_option("--system", system_, "The system message")->type_name("TEXT");
    auto* most = app.add_option("--max-new-tokens", local_.max_new_tokens,
                                "Maximum length of a response; 0: the rest of the context");
    accept_integers(*most->type_name("N")->capture_default_str(),
                    {0, std::numeric_limits<std::int32_t>::max()});
    auto* temperature = app.add_option("--temperature", local_.sampling.temperature,
                                       "Divides the logits; 0: the most probable token");
    accept_numbers(*temperature->type_name("T")->capture_default_str(), {.min = 0.0F});
    auto* top_p = app.add_option("--top-p", local_.sampling.top_p,
                                 "Sample only from the smallest set of most probable tokens whose "
                                 "total probability reaches this; 1: all");
    accept_numbers(*top_p->type_name("P")->capture_default_str(),
                   {.min = 0.0F, .min_excluded = true, .max = 1.0F});
    auto* seed = app.add_option("--seed", local_.seed, "Seed of the random numbers");
    accept_integers(*seed->type_name("S")->capture_default_str(),
                    {0, std::numeric_limits<std::uint64_t>::max()});
  }

  [[nodiscard]] Status run(Session& session) override {
    if (session.form == OutputForm::kJson) {
      return invalid_argument("chat: has no JSON output; use generate --chat");
    }
    TIDEMILL_ASSIGN_OR_RETURN(peer_, open(session));
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
                                                  : respond(line, session);
      if (!status.ok()) {
        session.err << printable(status.message()) << '\n';
      }
    }
    session.out << '\n';
    return {};
  }

private:
  static constexpr std::uint64_t kMaxTimeoutSeconds = 86'400;

  // A server's message must not control the terminal.
  static std::string printable(const std::string& message) {
    return shown_text(message, detect_terminal(std::cerr).letters);
  }

  [[nodiscard]] bool is_given(const char* option) const {
    return app_->get_option(option)->count() > 0;
  }

  // Opens the model, or connects to the server.
  [[nodiscard]] Result<std::unique_ptr<ChatPeer>> open(Session& session) {
    const bool is_url = model_.path().find("://") != std::string::npos;
    constexpr std::array kOfServers{"--model", "--api-key", "--timeout"};
    constexpr std::array kOfModels{"--adapter", "--dtype", "--threads", "--cache-mib"};
    for (const char* option : kOfServers) {
      if (!is_url && is_given(option)) {
        return invalid_argument(std::string(option) + ": needs the URL of a server");
      }
    }
    for (const char* option : kOfModels) {
      if (is_url && is_given(option)) {
        return invalid_argument(std::string(option) + ": is chosen by the server");
      }
    }
    if (is_url) {
      return connect();
    }
    if (local_.sampling.temperature > 0.0F &&
        local_.sampling.temperature < engines::kMinTemperature) {
      return invalid_argument("--temperature: must be 0 or at least 0.001");
    }
    return open_local_chat(model_, local_, session.log);
  }

  [[nodiscard]] Result<std::unique_ptr<ChatPeer>> connect() {
    remote_.url = model_.path();
    remote_.timeout = std::chrono::seconds(timeout_seconds_);
    // NOLINTNEXTLINE(concurrency-mt-unsafe): nothing calls setenv
    const char* key = std::getenv("TIDEMILL_API_KEY");
    if (key != nullptr && !is_given("--api-key")) {
      remote_.api_key = key;
    }
    if (is_given("--temperature")) {
      remote_.temperature = app_->get_option("--temperature")->as<double>();
    }
    if (is_given("--top-p")) {
      remote_.top_p = app_->get_option("--top-p")->as<double>();
    }
    if (is_given("--seed")) {
      remote_.seed = local_.seed;
    }
    if (local_.max_new_tokens > 0) {
      remote_.max_tokens = local_.max_new_tokens;
    }
    return open_remote_chat(remote_);
  }

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
    for (const ChatMessage& message : messages_) {
      all.push_back(Json::Object{{"role", message.role}, {"content", message.content}});
    }
    PosixFileSystem files;
    TIDEMILL_RETURN_IF_ERROR(
        write_file(files, path, Json(Json::Object{{"messages", std::move(all)}}).to_line()));
    session.out << "saved in " << path << '\n';
    return {};
  }

  // Adds a message of the user and the model's response. After an error, adds neither.
  [[nodiscard]] Status respond(const std::string& line, Session& session) {
    messages_.push_back({"user", line});
    ResponsePrinter printer(session.out);
    const InterruptGuard guard;
    Status status = peer_->respond(
        messages_, [] { return interrupted != 0; }, printer);
    if (!printer.text().empty() || status.ok()) {
      session.out << std::endl;
    }
    if (!status.ok()) {
      messages_.pop_back();
      return status;
    }
    messages_.push_back({"assistant", printer.text()});
    return {};
  }

  CLI::App* app_ = nullptr;
  ModelArguments model_;
  LocalChatOptions local_;
  RemoteChatOptions remote_;
  std::uint64_t timeout_seconds_ = 300;
  std::string system_;
  std::unique_ptr<ChatPeer> peer_;
  std::vector<ChatMessage> messages_;
};

}  // namespace

std::unique_ptr<Command> make_chat_command() {
  return std::make_unique<ChatCommand>();
}

}  // namespace tidemill::launcher
