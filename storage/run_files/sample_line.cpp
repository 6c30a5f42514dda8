// SPDX-License-Identifier: Apache-2.0
#include "storage/run_files/sample_line.hpp"

#include <array>
#include <charconv>
#include <limits>
#include <utility>

#include "base/json/fields.hpp"
#include "base/json/json.hpp"

namespace tidemill::storage {
namespace {

constexpr const char* kLocation = "sample";

Json json_of(std::uint64_t value) {
  return static_cast<std::int64_t>(value);
}

// Returns the number with the fewest digits that is read back as `value`. It takes about half the
// bytes of `value` printed as a double.
double short_number(float value) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  double number = 0.0;
  std::from_chars(text.data(), end, number);
  return static_cast<float>(number) == value ? number : static_cast<double>(value);
}

std::uint64_t count(JsonFields& fields, const char* name) {
  return static_cast<std::uint64_t>(fields.required_integer(name, {0}));
}

void read_rewards(JsonFields& fields, SampleLine& line) {
  const Json* rewards = fields.find("rewards");
  if (rewards == nullptr) {
    return;
  }
  const Json::Object* parts = rewards->if_object();
  for (std::size_t i = 0; parts != nullptr && i < parts->size(); ++i) {
    if (const std::optional<double> value = (*parts)[i].value.number()) {
      line.rewards[(*parts)[i].name] = *value;
    }
  }
  if (parts == nullptr || parts->size() != line.rewards.size()) {
    fields.refuse("rewards", "must be an object of numbers");
  }
}

void read_versions(JsonFields& fields, SampleLine& line) {
  const Json* versions = fields.find("versions");
  if (versions == nullptr) {
    return;
  }
  if (versions->if_array() == nullptr) {
    fields.refuse("versions", "must be a list");
    return;
  }
  for (const Json& span : *versions->if_array()) {
    JsonFields parts(span, kLocation, "versions.");
    line.versions.push_back({count(parts, "step"), count(parts, "tokens")});
    fields.refuse(parts.status());
  }
}

void read_tokens(JsonFields& fields, SampleLine& line) {
  constexpr std::int64_t kMaxId = std::numeric_limits<std::int32_t>::max();
  for (const std::int64_t id :
       fields.integers("response_ids", {0, kMaxId}).value_or(std::vector<std::int64_t>())) {
    line.response_ids.push_back(static_cast<std::int32_t>(id));
  }
  const Json* logprobs = fields.find("behavior_logprobs");
  if (logprobs != nullptr && logprobs->if_array() != nullptr) {
    for (const Json& logprob : *logprobs->if_array()) {
      line.behavior_logprobs.push_back(
          static_cast<float>(logprob.number().value_or(std::numeric_limits<double>::quiet_NaN())));
    }
  }
  if (line.behavior_logprobs.size() != line.response_ids.size()) {
    fields.refuse("behavior_logprobs", "must have as many elements as response_ids");
  }
}

}  // namespace

std::string write_sample_line(const SampleLine& line) {
  Json::Array versions;
  for (const SampledSpan& span : line.versions) {
    versions.push_back(
        Json::Object{{"step", json_of(span.step)}, {"tokens", json_of(span.tokens)}});
  }
  Json::Object rewards;
  for (const auto& [name, value] : line.rewards) {
    rewards.push_back({name, value});
  }
  Json::Array ids;
  for (const std::int32_t id : line.response_ids) {
    ids.push_back(Json(id));
  }
  Json::Array logprobs;
  for (const float logprob : line.behavior_logprobs) {
    logprobs.push_back(Json(short_number(logprob)));
  }
  Json::Object object{{"step", json_of(line.step)},   {"sample", json_of(line.sample)},
                      {"group", json_of(line.group)}, {"prompt", line.prompt},
                      {"response", line.response},    {"answer", line.reference_answer},
                      {"reward", line.reward}};
  if (!rewards.empty()) {
    object.push_back({"rewards", Json(std::move(rewards))});
  }
  object.push_back({"advantage", short_number(line.advantage)});
  object.push_back({"finish_reason", line.finish_reason});
  object.push_back({"versions", std::move(versions)});
  object.push_back({"response_ids", std::move(ids)});
  object.push_back({"behavior_logprobs", std::move(logprobs)});
  return Json(std::move(object)).to_line();
}

Result<SampleLine> parse_sample_line(std::string_view text) {
  const auto parsed = parse_json(text);
  if (!parsed.ok()) {
    return corrupt_data(parsed.status().message());
  }
  JsonFields fields(parsed.value(), kLocation);
  SampleLine line;
  line.step = count(fields, "step");
  line.sample = count(fields, "sample");
  line.group = count(fields, "group");
  line.prompt = fields.string("prompt").value_or("");
  line.response = fields.string("response").value_or("");
  line.reference_answer = fields.string("answer").value_or("");
  line.finish_reason = fields.string("finish_reason").value_or("");
  line.reward = fields.required_real("reward", {});
  line.advantage = static_cast<float>(fields.real("advantage", {}).value_or(0.0));
  read_rewards(fields, line);
  read_versions(fields, line);
  read_tokens(fields, line);
  return fields.status().ok() ? Result<SampleLine>(std::move(line))
                              : corrupt_data(fields.status().message());
}

std::optional<std::uint64_t> step_of_sample_line(std::string_view text) {
  constexpr std::string_view kBegin = "{\"step\":";
  if (!text.starts_with(kBegin)) {
    return std::nullopt;
  }
  std::int64_t step = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data() + kBegin.size(), end, step);
  const bool whole = error == std::errc() && step >= 0 && rest != end && *rest == ',';
  return whole ? std::optional(static_cast<std::uint64_t>(step)) : std::nullopt;
}

}  // namespace tidemill::storage
