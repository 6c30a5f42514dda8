// SPDX-License-Identifier: Apache-2.0
#include "engines/reward/command_protocol.hpp"

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

namespace tidemill::engines {
namespace {

using Json = nlohmann::json;

constexpr int kMaxDepth = 64;
constexpr std::size_t kMaxShownBytes = 200;

// Parses without exceptions. Rejects values nested deeper than `kMaxDepth`, so that no later
// traversal of the value can exhaust the stack.
std::optional<Json> parse_shallow(std::string_view text) {
  bool too_deep = false;
  const auto keep = [&too_deep](int depth, Json::parse_event_t event, const Json&) {
    const bool opens =
        event == Json::parse_event_t::array_start || event == Json::parse_event_t::object_start;
    too_deep = too_deep || (opens && depth >= kMaxDepth);
    return !too_deep;
  };
  Json value = Json::parse(text.begin(), text.end(), keep, /*allow_exceptions=*/false);
  if (too_deep || value.is_discarded()) {
    return std::nullopt;
  }
  return value;
}

// Finds `"id": 12` in a line that is not JSON.
std::optional<std::uint64_t> find_id(std::string_view line) {
  constexpr std::string_view kKey = "\"id\"";
  constexpr std::string_view kSpace = " \t";
  std::size_t at = line.find(kKey);
  if (at == std::string_view::npos) {
    return std::nullopt;
  }
  at = line.find_first_not_of(kSpace, at + kKey.size());
  if (at == std::string_view::npos || line[at] != ':') {
    return std::nullopt;
  }
  at = line.find_first_not_of(kSpace, at + 1);
  if (at == std::string_view::npos) {
    return std::nullopt;
  }
  std::uint64_t id = 0;
  const auto [end, error] = std::from_chars(line.data() + at, line.data() + line.size(), id);
  return error == std::errc{} ? std::optional(id) : std::nullopt;
}

CommandReply bad(std::uint64_t id, std::string_view line, std::string_view why) {
  return {CommandReply::Kind::kBad, id, 0.0, std::string(why) + ": " + printable(line)};
}

}  // namespace

Result<std::string> encode_request(std::uint64_t id, const RewardRequest& request) {
  Json object = Json::object();
  if (!request.fields.empty()) {
    std::optional<Json> fields = parse_shallow(request.fields);
    if (!fields || !fields->is_object()) {
      return invalid_argument("the row is not a JSON object of at most 64 levels");
    }
    object = std::move(*fields);
  }
  object["id"] = id;
  object["prompt"] = request.prompt;
  object["response"] = request.response;
  object["answer"] = request.reference_answer;
  return object.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

CommandReply parse_reply(std::string_view line) {
  const std::size_t start = line.find_first_not_of(" \t");
  if (start == std::string_view::npos || line[start] != '{') {
    return {.text = printable(line)};  // not an object; not parsing it keeps floods of lines cheap
  }
  const std::optional<Json> value = parse_shallow(line);
  if (!value) {
    const std::optional<std::uint64_t> id = find_id(line);
    return id ? bad(*id, line, "not JSON with a finite reward")
              : CommandReply{.text = printable(line)};
  }
  const auto id = value->find("id");
  if (id == value->end() || !id->is_number_unsigned()) {
    return {.text = printable(line)};
  }
  const auto key = id->get<std::uint64_t>();
  if (const auto error = value->find("error"); error != value->end() && !error->is_null()) {
    return {CommandReply::Kind::kError, key, 0.0,
            printable(error->is_string() ? error->get_ref<const std::string&>() : error->dump())};
  }
  const auto reward = value->find("reward");
  if (reward == value->end() || !reward->is_number()) {
    return bad(key, line, "the reward is not a number");
  }
  const auto number = reward->get<double>();
  if (!std::isfinite(number)) {
    return bad(key, line, "the reward is not finite");
  }
  if (!is_reward(number)) {
    return bad(key, line, "the reward is beyond 1e30");
  }
  return {CommandReply::Kind::kReward, key, number, {}};
}

std::string printable(std::string_view text) {
  std::string shown(text.substr(0, kMaxShownBytes));
  if (text.size() > kMaxShownBytes) {
    // Do not split a UTF-8 sequence: drop the last sequence, which may be incomplete.
    while (!shown.empty() && (static_cast<unsigned char>(shown.back()) & 0xC0U) == 0x80U) {
      shown.pop_back();
    }
    if (!shown.empty() && (static_cast<unsigned char>(shown.back()) & 0x80U) != 0U) {
      shown.pop_back();
    }
    shown += "...";
  }
  for (char& c : shown) {
    if (static_cast<unsigned char>(c) < 0x20U || c == 0x7F) {
      c = '?';
    }
  }
  return shown;
}

}  // namespace tidemill::engines
