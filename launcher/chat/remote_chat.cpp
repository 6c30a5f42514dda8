// SPDX-License-Identifier: Apache-2.0
#include "launcher/chat/remote_chat.hpp"

#include <algorithm>
#include <utility>

#include "actors/gateway/http/event_reader.hpp"
#include "actors/gateway/http/http_client.hpp"
#include "base/json/json.hpp"
#include "base/text/clip.hpp"
#include "base/text/quote.hpp"

namespace tidemill::launcher {
namespace {

using actors::HttpCall;
using actors::HttpClient;
using actors::HttpReply;
using actors::HttpResponse;

constexpr std::size_t kMaxShownModels = 10;
constexpr std::size_t kMaxMessageBytes = 400;

// Returns the message of an error object in OpenAI's form or in similar ones, or "".
std::string error_message(const Json& body) {
  const Json* error = body.find("error");
  if (error == nullptr) {
    return "";
  }
  const Json* message = error->if_object() != nullptr ? error->find("message") : error;
  const std::string* text = message == nullptr ? nullptr : message->if_string();
  return text == nullptr ? clipped(error->to_line(), kMaxMessageBytes)
                         : clipped(*text, kMaxMessageBytes);
}

const std::string* string_at(const Json& value, std::string_view name) {
  const Json* member = value.find(name);
  return member == nullptr ? nullptr : member->if_string();
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kMaxShownModels); ++i) {
    text += (i > 0 ? ", " : "") + clipped(names[i]);
  }
  return names.size() > kMaxShownModels ? text + ", ..." : text;
}

// What a stream of chat completions has said so far.
class StreamedResponse {
public:
  explicit StreamedResponse(ResponsePrinter& printer) : printer_(printer) {}

  void add(std::string_view part) {
    if (status_.ok()) {
      const Status read = reader_.add(part, [this](const std::string& data) { on_data(data); });
      if (status_.ok()) {
        status_ = read;
      }
    }
  }

  [[nodiscard]] const Status& status() const noexcept { return status_; }
  [[nodiscard]] bool complete() const noexcept { return complete_; }
  [[nodiscard]] bool has_events() const noexcept { return has_events_; }

private:
  void on_data(const std::string& data) {
    has_events_ = true;
    if (!status_.ok() || data == "[DONE]") {
      complete_ = complete_ || data == "[DONE]";
      return;
    }
    const Result<Json> parsed = parse_json(data);
    if (!parsed.ok()) {
      status_ = parsed.status().with_context("an event of the stream");
      return;
    }
    if (std::string error = error_message(parsed.value()); !error.empty()) {
      status_ = Status(Errc::kUnavailable, "the response failed: " + error);
      return;
    }
    const Json* choices = parsed.value().find("choices");
    const Json::Array* list = choices == nullptr ? nullptr : choices->if_array();
    if (list == nullptr || list->empty()) {
      return;  // the usage
    }
    const Json& choice = list->front();
    if (const Json* delta = choice.find("delta"); delta != nullptr) {
      if (const std::string* text = string_at(*delta, "content")) {
        printer_.add(*text);
      }
    }
    complete_ = complete_ || string_at(choice, "finish_reason") != nullptr;
  }

  ResponsePrinter& printer_;
  actors::EventReader reader_;
  Status status_;
  bool complete_ = false;
  bool has_events_ = false;
};

class RemoteChat final : public ChatPeer {
public:
  RemoteChat(actors::HttpUrl url, RemoteChatOptions options)
      : options_(std::move(options)), client_(std::move(url), limits(options_)) {}

  // Chooses the model.
  [[nodiscard]] Status open() {
    TIDEMILL_ASSIGN_OR_RETURN(const HttpReply reply, client_.call(to_call("/models")));
    if (!options_.model.empty() && reply.response.status == 404) {
      return {};  // a server that lists no models
    }
    TIDEMILL_RETURN_IF_ERROR(check(reply.response));
    TIDEMILL_ASSIGN_OR_RETURN(const std::vector<std::string> models, names_in(reply.response));
    if (options_.model.empty()) {
      if (models.empty()) {
        return failed("the server has no models");
      }
      options_.model = models.front();
    }
    return {};
  }

  [[nodiscard]] Status respond(const std::vector<ChatMessage>& messages,
                               const std::function<bool()>& interrupted,
                               ResponsePrinter& printer) override {
    StreamedResponse streamed(printer);
    HttpCall call = to_call("/chat/completions");
    call.method = "POST";
    call.headers.push_back({"content-type", "application/json"});
    call.headers.push_back({"accept", "text/event-stream"});
    call.body = body_of(messages);
    call.on_part = [&](std::string_view part) { streamed.add(part); };
    call.is_cancelled = [&] { return interrupted() || !streamed.status().ok(); };
    TIDEMILL_ASSIGN_OR_RETURN(const HttpReply reply, client_.call(call));
    TIDEMILL_RETURN_IF_ERROR(streamed.status().with_context(address()));
    if (reply.cancelled) {
      return {};
    }
    if (reply.response.status == 404) {
      return not_found(reply.response);
    }
    TIDEMILL_RETURN_IF_ERROR(check(reply.response));
    if (!streamed.has_events()) {
      return failed("the server sent no stream of events");
    }
    return streamed.complete() ? Status() : failed("the stream ended before the response did");
  }

private:
  static actors::HttpClientLimits limits(const RemoteChatOptions& options) {
    actors::HttpClientLimits limits;
    limits.connect_time = std::min(limits.connect_time, options.timeout);
    limits.first_byte_time = limits.gap_time = options.timeout;
    return limits;
  }

  [[nodiscard]] std::string address() const { return client_.url().authority(); }
  [[nodiscard]] Status failed(const std::string& what) const {
    return {Errc::kUnavailable, address() + ": " + what};
  }

  [[nodiscard]] HttpCall to_call(const std::string& path) const {
    HttpCall call;
    call.path = path;
    if (!options_.api_key.empty()) {
      call.headers.push_back({"authorization", "Bearer " + options_.api_key});
    }
    return call;
  }

  [[nodiscard]] std::string body_of(const std::vector<ChatMessage>& messages) const {
    Json::Array list;
    for (const ChatMessage& message : messages) {
      list.push_back(Json::Object{{"role", message.role}, {"content", message.content}});
    }
    Json::Object body{{"model", options_.model}, {"messages", std::move(list)}, {"stream", true}};
    if (options_.temperature.has_value()) {
      body.push_back({"temperature", *options_.temperature});
    }
    if (options_.top_p.has_value()) {
      body.push_back({"top_p", *options_.top_p});
    }
    if (options_.seed.has_value()) {
      body.push_back({"seed", Json::large_integer(std::to_string(*options_.seed))});
    }
    if (options_.max_tokens.has_value()) {
      body.push_back({"max_tokens", *options_.max_tokens});
    }
    return Json(std::move(body)).to_line();
  }

  // Returns an error with the server's message if the status is not 200.
  [[nodiscard]] Status check(const HttpResponse& response) const {
    if (response.status == 200) {
      return {};
    }
    const Result<Json> body = parse_json(response.body);
    std::string message = body.ok() ? error_message(body.value()) : "";
    if (message.empty()) {
      message = clipped(response.body, kMaxMessageBytes);
    }
    std::string hint;
    if (response.status == 401) {
      hint = options_.api_key.empty() ? "; give a key by --api-key or TIDEMILL_API_KEY"
                                      : "; the server does not accept the API key";
    }
    return failed("the server responded with " + std::to_string(response.status) +
                  (message.empty() ? "" : ": " + message) + hint);
  }

  [[nodiscard]] Result<std::vector<std::string>> names_in(const HttpResponse& response) const {
    TIDEMILL_ASSIGN_OR_RETURN(const Json body, parse_json(response.body));
    const Json* data = body.find("data");
    if (data == nullptr || data->if_array() == nullptr) {
      return corrupt_data(address() + ": the response to /models is no list of models");
    }
    std::vector<std::string> names;
    for (const Json& one : *data->if_array()) {
      if (const std::string* name = string_at(one, "id")) {
        names.push_back(*name);
      }
    }
    return names;
  }

  // Returns the error for a response of 404, with the list of models if the server has one.
  [[nodiscard]] Status not_found(const HttpResponse& response) {
    Status refused = check(response);
    const Result<HttpReply> reply = client_.call(to_call("/models"));
    if (!reply.ok() || reply.value().response.status != 200) {
      return refused;
    }
    const Result<std::vector<std::string>> models = names_in(reply.value().response);
    if (!models.ok() || std::find(models.value().begin(), models.value().end(), options_.model) !=
                            models.value().end()) {
      return refused;
    }
    return {Errc::kNotFound, address() + ": there is no model " + quote(options_.model) +
                                 "; the server has " + joined(models.value())};
  }

  RemoteChatOptions options_;
  HttpClient client_;
};

}  // namespace

Result<std::unique_ptr<ChatPeer>> open_remote_chat(const RemoteChatOptions& options) {
  TIDEMILL_ASSIGN_OR_RETURN(actors::HttpUrl url, actors::parse_http_url(options.url));
  if (!url.path.ends_with("/v1")) {
    url.path += "/v1";
  }
  auto peer = std::make_unique<RemoteChat>(std::move(url), options);
  TIDEMILL_RETURN_IF_ERROR(peer->open());
  return std::unique_ptr<ChatPeer>(std::move(peer));
}

}  // namespace tidemill::launcher
