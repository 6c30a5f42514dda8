// SPDX-License-Identifier: Apache-2.0
#include "launcher/chat/local_chat.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "engines/chat/chat_renderer.hpp"
#include "engines/chat/conversation.hpp"
#include "engines/tokenizer/tokenizer.hpp"
#include "launcher/models/model_path.hpp"

namespace tidemill::launcher {
namespace {

using engines::FinishReason;
using engines::RolloutRequest;
using engines::RolloutResult;
using engines::Tokenizer;
using engines::chat::ChatRenderer;
using engines::chat::ChatRequest;
using engines::chat::Value;

// Decodes a response while it is generated.
class DecodingSink final : public engines::RolloutSink {
public:
  DecodingSink(const Tokenizer& tokenizer, ResponsePrinter& printer)
      : decoder_(tokenizer, engines::SpecialTokenText::kDrop), printer_(printer) {}

  void on_tokens(const engines::RolloutTokens& tokens) override {
    for (const std::int32_t id : tokens.ids) {
      printer_.add(decoder_.push(id));
    }
  }
  void on_rollout(RolloutResult result) override {
    printer_.add(decoder_.finish());
    result_ = std::move(result);
  }

  [[nodiscard]] const std::optional<RolloutResult>& result() const { return result_; }

private:
  engines::IncrementalDecoder decoder_;
  ResponsePrinter& printer_;
  std::optional<RolloutResult> result_;
};

class LocalChat final : public ChatPeer {
public:
  LocalChat(Tokenizer tokenizer, ChatRenderer chat, OpenedModel model,
            const LocalChatOptions& options)
      : tokenizer_(std::move(tokenizer)),
        chat_(std::move(chat)),
        model_(std::move(model)),
        options_(options) {}

  [[nodiscard]] Status respond(const std::vector<ChatMessage>& messages,
                               const std::function<bool()>& interrupted,
                               ResponsePrinter& printer) override {
    ChatRequest request;
    engines::chat::List list;
    for (const ChatMessage& message : messages) {
      list.push_back(engines::chat::make_message(message.role.c_str(), message.content));
    }
    request.messages = Value::sequence(std::move(list));
    request.ending = engines::chat::Ending::kGenerationPrompt;
    TIDEMILL_ASSIGN_OR_RETURN(const std::string text, chat_.render(std::move(request)));
    RolloutRequest rollout;
    rollout.id = SampleId{messages.size()};
    TIDEMILL_ASSIGN_OR_RETURN(rollout.prompt_ids,
                              tokenizer_.encode(text, engines::AddSpecialTokens::kNo));
    const auto size = static_cast<std::int64_t>(rollout.prompt_ids.size());
    const std::int64_t room = model_.config.max_positions - size;
    if (room < 1) {
      return invalid_argument("the conversation has " + std::to_string(size) +
                              " tokens, which fills the model's context of " +
                              std::to_string(model_.config.max_positions) + "; /reset clears it");
    }
    rollout.sampling = options_.sampling;
    rollout.seed = options_.seed;
    rollout.max_new_tokens = static_cast<std::int32_t>(
        options_.max_new_tokens == 0 ? room : std::min(room, options_.max_new_tokens));
    rollout.stop_ids = model_.generation.eos_token_ids.empty() ? model_.config.eos_token_ids
                                                               : model_.generation.eos_token_ids;
    DecodingSink sink(tokenizer_, printer);
    TIDEMILL_RETURN_IF_ERROR(run(std::move(rollout), model_.runtime->rollout(), interrupted, sink));
    if (sink.result().has_value() && sink.result()->finish_reason == FinishReason::kFailed) {
      return {Errc::kInternal, sink.result()->error};
    }
    return {};
  }

private:
  // Generates until the response ends or the user interrupts it.
  [[nodiscard]] static Status run(RolloutRequest request, engines::RolloutEngine& engine,
                                  const std::function<bool()>& interrupted, DecodingSink& sink) {
    const SampleId id = request.id;
    TIDEMILL_RETURN_IF_ERROR(engine.submit(std::move(request), sink));
    while (!sink.result().has_value()) {
      if (interrupted()) {
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

  Tokenizer tokenizer_;
  ChatRenderer chat_;
  OpenedModel model_;
  LocalChatOptions options_;
};

}  // namespace

Result<std::unique_ptr<ChatPeer>> open_local_chat(const ModelArguments& model,
                                                  const LocalChatOptions& options, Log& log) {
  TIDEMILL_RETURN_IF_ERROR(check_model_path(model.path()));
  TIDEMILL_ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::load(model.path()));
  TIDEMILL_ASSIGN_OR_RETURN(ChatRenderer chat,
                            ChatRenderer::open(model.path(), tokenizer.config(), std::nullopt));
  TIDEMILL_ASSIGN_OR_RETURN(OpenedModel opened, model.open(log));
  return std::unique_ptr<ChatPeer>(std::make_unique<LocalChat>(
      std::move(tokenizer), std::move(chat), std::move(opened), options));
}

}  // namespace tidemill::launcher
