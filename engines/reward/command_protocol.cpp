// SPDX-License-Identifier: Apache-2.0
#include "engines/reward/command_protocol.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include "base/json/json.hpp"
#include "base/text/clip.hpp"

namespace tidemill::engines {
namespace {

constexpr std::size_t kMaxShownBytes = 200;

// Returns a number as an id if it is one. Some JSON libraries write every number as a fraction,
// such as 16.0 or 1.6e1.
std::optional<std::uint64_t> as_id(double number) {
  constexpr double kMaxExact = 9007199254740992.0;  // 2^53: above it, fractions skip integers
  return number >= 0.0 && number <= kMaxExact && std::floor(number) == number
             ? std::optional(static_cast<std::uint64_t>(number))
             : std::nullopt;
}

// Reads all of `text` as a number.
template <class Number>
std::optional<Number> read_number(std::string_view text) {
  Number number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && end == text.data() + text.size() ? std::optional(number)
                                                                  : std::nullopt;
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
  const std::string_view rest = line.substr(at);
  const std::string_view number = rest.substr(0, rest.find_first_not_of("0123456789+-.eE"));
  if (const auto integer = read_number<std::uint64_t>(number)) {
    return integer;
  }
  return as_id(read_number<double>(number).value_or(-1.0));
}

// Returns the id of a reply.
std::optional<std::uint64_t> read_id(const Json& reply) {
  const Json* id = reply.find("id");
  if (id == nullptr) {
    return std::nullopt;
  }
  if (const std::int64_t* integer = id->if_integer(); integer != nullptr) {
    return *integer >= 0 ? std::optional(static_cast<std::uint64_t>(*integer)) : std::nullopt;
  }
  return as_id(id->number().value_or(-1.0));
}

CommandReply bad(std::uint64_t id, std::string_view line, std::string_view why) {
  return {CommandReply::Kind::kBad, id, 0.0, std::string(why) + ": " + printable(line)};
}

// Returns `value` with the members of all objects sorted by name.
Json sorted(const Json& value) {
  if (const Json::Array* items = value.if_array()) {
    Json::Array out;
    for (const Json& item : *items) {
      out.push_back(sorted(item));
    }
    return out;
  }
  if (const Json::Object* members = value.if_object()) {
    Json::Object out;
    for (const Json::Member& member : *members) {
      out.push_back({member.name, sorted(member.value)});
    }
    std::sort(out.begin(), out.end(),
              [](const Json::Member& a, const Json::Member& b) { return a.name < b.name; });
    return out;
  }
  return value;
}

// Returns `value` as JSON without white space.
std::string compact_text(const Json& value) {
  std::string text = value.to_line();
  text.pop_back();  // the newline
  return text;
}

}  // namespace

Result<std::string> encode_request(std::uint64_t id, const RewardRequest& request) {
  Json::Object members;
  if (!request.fields.empty()) {
    const Result<Json> row = parse_json(request.fields);
    if (!row.ok() || row.value().if_object() == nullptr) {
      return invalid_argument("the row is not a JSON object of at most 64 levels");
    }
    members = *row.value().if_object();
  }
  for (Json::Member& own : Json::Object{{"id", static_cast<std::int64_t>(id)},
                                        {"prompt", request.prompt},
                                        {"response", request.response},
                                        {"answer", request.reference_answer}}) {
    const auto same = std::find_if(members.begin(), members.end(),
                                   [&own](const Json::Member& m) { return m.name == own.name; });
    if (same == members.end()) {
      members.push_back(std::move(own));
    } else {
      same->value = std::move(own.value);
    }
  }
  return sorted(Json(std::move(members))).to_line();
}

CommandReply parse_reply(std::string_view line) {
  const std::size_t start = line.find_first_not_of(" \t");
  if (start == std::string_view::npos || line[start] != '{') {
    return {.text = printable(line)};  // not an object; not parsing it keeps floods of lines cheap
  }
  const Result<Json> parsed = parse_json(line);
  if (!parsed.ok()) {
    const std::optional<std::uint64_t> id = find_id(line);
    return id ? bad(*id, line, "not JSON with a finite reward")
              : CommandReply{.text = printable(line)};
  }
  const Json& value = parsed.value();
  const std::optional<std::uint64_t> id = read_id(value);
  if (!id) {
    return {.text = printable(line)};
  }
  if (const Json* error = value.find("error"); error != nullptr && !error->is_null()) {
    const std::string* text = error->if_string();
    return {CommandReply::Kind::kError, *id, 0.0,
            printable(text != nullptr ? *text : compact_text(*error))};
  }
  const Json* reward = value.find("reward");
  const std::optional<double> number = reward == nullptr ? std::nullopt : reward->number();
  if (!number) {
    return bad(*id, line, "the reward is not a number");
  }
  if (!std::isfinite(*number)) {
    return bad(*id, line, "the reward is not finite");
  }
  if (!is_reward(*number)) {
    return bad(*id, line, "the reward is beyond 1e30");
  }
  return {CommandReply::Kind::kReward, *id, *number, {}};
}

std::string printable(std::string_view text) {
  return clipped(text, kMaxShownBytes);
}

}  // namespace tidemill::engines
