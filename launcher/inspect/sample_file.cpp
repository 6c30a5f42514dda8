// SPDX-License-Identifier: Apache-2.0
#include "launcher/inspect/sample_file.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <span>

#include "actors/recorder/metrics_events.hpp"
#include "base/json/fields.hpp"
#include "base/json/json.hpp"

namespace tidemill::launcher {
namespace {

// Enough for a response of several hundred thousand tokens.
constexpr JsonLimits kLineLimits{std::size_t{64} << 20U, 32, 4'000'000};

// Reads the step at the start of a line, so that lines of other steps need not be parsed.
std::optional<std::int64_t> step_of(std::string_view line) {
  constexpr std::string_view kBegin = "{\"step\":";
  if (!line.starts_with(kBegin)) {
    return std::nullopt;
  }
  std::int64_t step = 0;
  const char* end = line.data() + line.size();
  const auto [rest, error] = std::from_chars(line.data() + kBegin.size(), end, step);
  return error == std::errc() && rest != end && *rest == ',' ? std::optional(step) : std::nullopt;
}

// Collects the locations of the chosen lines.
class Finder {
public:
  explicit Finder(const SampleChoice& choice) : choice_(choice) {}

  Status take(std::string_view line) {
    const std::optional<std::int64_t> step = step_of(line);
    if (!step) {
      return corrupt_data("no sample begins at byte " + std::to_string(offset_));
    }
    first_step_ = std::min(first_step_, *step);
    last_step_ = std::max(last_step_, *step);
    if (!choice_.step && !found_.empty() && *step > found_.front().step) {
      found_.clear();  // they were not of the last step
    }
    if (!choice_.step || *step == *choice_.step) {
      const auto sample = parse_sample(line);
      if (!sample.ok()) {
        return sample.status().with_context("byte " + std::to_string(offset_));
      }
      found_.push_back(
          {offset_, line.size() + 1, *step, sample.value().group, sample.value().reward});
    }
    offset_ += line.size() + 1;
    return {};
  }

  Result<std::vector<SampleLocation>> take_found() && {
    if (offset_ == 0) {
      return Status(Errc::kNotFound, "contains no samples");
    }
    if (found_.empty()) {
      return Status(Errc::kNotFound, "has no samples of step " + std::to_string(*choice_.step) +
                                         "; its steps are " + std::to_string(first_step_) + " to " +
                                         std::to_string(last_step_));
    }
    if (choice_.group) {
      return of_group();
    }
    return std::move(found_);
  }

private:
  Result<std::vector<SampleLocation>> of_group() {
    std::vector<std::int64_t> groups;
    for (const SampleLocation& location : found_) {
      groups.push_back(location.group);
    }
    const auto [low, high] = std::minmax_element(groups.begin(), groups.end());
    const std::string range = std::to_string(*low) + " to " + std::to_string(*high);
    const std::string step = std::to_string(found_.front().step);
    found_.erase(std::remove_if(found_.begin(), found_.end(),
                                [this](const auto& p) { return p.group != *choice_.group; }),
                 found_.end());
    if (found_.empty()) {
      return Status(Errc::kNotFound, "has no samples of group " + std::to_string(*choice_.group) +
                                         " in step " + step + "; its groups are " + range);
    }
    return std::move(found_);
  }

  SampleChoice choice_;
  std::vector<SampleLocation> found_;
  std::uint64_t offset_ = 0;
  std::int64_t first_step_ = std::numeric_limits<std::int64_t>::max();
  std::int64_t last_step_ = 0;
};

}  // namespace

Result<std::vector<SampleLocation>> find_samples(const std::filesystem::path& path,
                                                 const SampleChoice& choice) {
  TIDEMILL_ASSIGN_OR_RETURN(const ReadableFile file, ReadableFile::open(path));
  Finder finder(choice);
  const Status status =
      actors::for_each_block(path, file.size_bytes(), [&](std::string_view lines) -> Status {
        while (!lines.empty()) {
          const std::size_t end = lines.find('\n');
          TIDEMILL_RETURN_IF_ERROR(finder.take(lines.substr(0, end)));
          lines.remove_prefix(end + 1);
        }
        return {};
      });
  if (!status.ok()) {
    return status.with_context(path.string());
  }
  auto found = std::move(finder).take_found();
  return found.ok() ? std::move(found) : found.status().with_context(path.string());
}

Result<std::string> read_sample_line(const ReadableFile& file, const SampleLocation& location) {
  std::string line(static_cast<std::size_t>(location.bytes), '\0');
  TIDEMILL_RETURN_IF_ERROR(file.read_at(location.offset, std::as_writable_bytes(std::span(line))));
  line.pop_back();
  return line;
}

Result<RecordedSample> parse_sample(std::string_view line) {
  constexpr std::int64_t kMaxInteger = std::numeric_limits<std::int64_t>::max();
  const auto parsed = parse_json(line, kLineLimits);
  if (!parsed.ok()) {
    return corrupt_data(parsed.status().message());
  }
  JsonFields fields(parsed.value(), "sample");
  RecordedSample sample;
  sample.step = fields.required_integer("step", {0, kMaxInteger});
  sample.sample = fields.required_integer("sample", {0, kMaxInteger});
  sample.group = fields.required_integer("group", {0, kMaxInteger});
  sample.prompt = fields.string("prompt").value_or("");
  sample.response = fields.string("response").value_or("");
  sample.reference_answer = fields.string("answer").value_or("");
  sample.finish_reason = fields.string("finish_reason").value_or("");
  sample.reward = fields.required_real("reward", {});
  sample.advantage = fields.real("advantage", {}).value_or(0.0);
  constexpr std::int64_t kMaxId = std::numeric_limits<std::int32_t>::max();
  for (const std::int64_t id :
       fields.integers("response_ids", {0, kMaxId}).value_or(std::vector<std::int64_t>())) {
    sample.response_ids.push_back(static_cast<std::int32_t>(id));
  }
  const Json* logprobs = fields.find("behavior_logprobs");
  if (logprobs != nullptr && logprobs->if_array() != nullptr) {
    for (const Json& logprob : *logprobs->if_array()) {
      sample.behavior_logprobs.push_back(
          static_cast<float>(logprob.number().value_or(std::numeric_limits<double>::quiet_NaN())));
    }
  }
  if (sample.behavior_logprobs.size() != sample.response_ids.size()) {
    fields.refuse("behavior_logprobs", "must have as many elements as response_ids");
  }
  return fields.status().ok() ? Result<RecordedSample>(std::move(sample))
                              : corrupt_data(fields.status().message());
}

}  // namespace tidemill::launcher
