// SPDX-License-Identifier: Apache-2.0
#include "actors/gateway/openai/tool_calls.hpp"

#include <optional>
#include <utility>

#include "actors/gateway/openai/text_stream.hpp"
#include "base/json/json.hpp"

namespace tidemill::actors::openai {
namespace {

constexpr std::string_view kOpen = "<tool_call>";
constexpr std::string_view kClose = "</tool_call>";
constexpr std::string_view kSpace = " \t\r\n";
constexpr std::size_t kMaxDepth = 32;

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kSpace);
  return begin == std::string_view::npos
             ? std::string_view()
             : text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

std::optional<ToolCall> to_call(const Json& json, const std::set<std::string>& tools) {
  const Json* name = json.find("name");
  const Json* arguments = json.find("arguments");
  arguments = arguments != nullptr ? arguments : json.find("parameters");
  if (name == nullptr || name->if_string() == nullptr || !tools.contains(*name->if_string())) {
    return std::nullopt;
  }
  if (arguments == nullptr || arguments->is_null()) {
    return ToolCall{*name->if_string(), "{}"};
  }
  if (arguments->if_object() == nullptr) {
    return std::nullopt;
  }
  return ToolCall{*name->if_string(), std::string(trimmed(arguments->to_line()))};
}

// Returns the calls that `text` consists of: one or, if `may_be_list`, a list. None if it is not
// only calls.
std::vector<ToolCall> parse_calls(std::string_view text, bool may_be_list,
                                  const std::set<std::string>& tools) {
  const auto json = parse_json(trimmed(text), {.max_depth = kMaxDepth});
  if (!json.ok()) {
    return {};
  }
  std::vector<ToolCall> calls;
  const Json::Array* list = json.value().if_array();
  if (list == nullptr) {
    if (auto call = to_call(json.value(), tools)) {
      calls.push_back(std::move(*call));
    }
    return calls;
  }
  for (std::size_t i = 0; may_be_list && i < list->size(); ++i) {
    auto call = to_call((*list)[i], tools);
    if (!call.has_value()) {
      return {};
    }
    calls.push_back(std::move(*call));
  }
  return calls;
}

}  // namespace

ToolPiece ToolCallReader::push(std::string_view text) {
  held_ += text;
  ToolPiece piece;
  read_held(piece);
  return piece;
}

// Moves what is certain from `held_` to `piece`.
void ToolCallReader::read_held(ToolPiece& piece) {
  for (;;) {
    if (state_ == State::kStart) {
      const std::size_t first = held_.find_first_not_of(kSpace);
      if (first == std::string::npos) {
        return;
      }
      state_ = held_[first] == '{' || held_[first] == '[' ? State::kPlain : State::kText;
    }
    if (state_ == State::kPlain) {
      return;  // decided at the end
    }
    if (state_ == State::kText) {
      const std::size_t open = held_.find(kOpen);
      if (open == std::string::npos) {
        const std::size_t size = held_.size() - partial_suffix_length(held_, {std::string(kOpen)});
        piece.text += held_.substr(0, size);
        held_.erase(0, size);
        return;
      }
      piece.text += held_.substr(0, open);
      held_.erase(0, open + kOpen.size());
      state_ = State::kTag;
    }
    const std::size_t close = held_.find(kClose);
    if (close == std::string::npos) {
      return;
    }
    const std::vector<ToolCall> calls = parse_calls(held_.substr(0, close), false, tools_);
    if (calls.empty()) {
      piece.text += std::string(kOpen) + held_.substr(0, close + kClose.size());
    }
    piece.calls.insert(piece.calls.end(), calls.begin(), calls.end());
    held_.erase(0, close + kClose.size());
    state_ = State::kText;
  }
}

ToolPiece ToolCallReader::finish() {
  ToolPiece piece;
  const std::string rest = std::exchange(held_, {});
  if (state_ == State::kPlain) {
    piece.calls = parse_calls(rest, true, tools_);
    piece.text = piece.calls.empty() ? rest : "";
  } else if (state_ == State::kTag) {
    // A call whose end tag is missing, because the response has ended with the call.
    piece.calls = parse_calls(rest, false, tools_);
    piece.text = piece.calls.empty() ? std::string(kOpen) + rest : "";
  } else {
    piece.text = rest;
  }
  return piece;
}

}  // namespace tidemill::actors::openai
