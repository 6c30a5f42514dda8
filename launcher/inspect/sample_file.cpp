// SPDX-License-Identifier: Apache-2.0
#include "launcher/inspect/sample_file.hpp"

#include <algorithm>
#include <limits>
#include <span>

#include "storage/run_files/lines.hpp"
#include "storage/run_files/sample_line.hpp"

namespace tidemill::launcher {
namespace {

// Collects the locations of the chosen lines.
class Finder {
public:
  explicit Finder(const SampleChoice& choice) : choice_(choice) {}

  Status take(std::string_view line) {
    const std::optional<std::uint64_t> begun = storage::step_of_sample_line(line);
    if (!begun) {
      return corrupt_data("no sample begins at byte " + std::to_string(offset_));
    }
    const auto step = static_cast<std::int64_t>(*begun);
    first_step_ = std::min(first_step_, step);
    last_step_ = std::max(last_step_, step);
    if (!choice_.step && !found_.empty() && step > found_.front().step) {
      found_.clear();  // they were not of the last step
    }
    if (!choice_.step || step == *choice_.step) {
      const auto sample = storage::parse_sample_line(line);
      if (!sample.ok()) {
        return sample.status().with_context("byte " + std::to_string(offset_));
      }
      found_.push_back({offset_, line.size() + 1, step,
                        static_cast<std::int64_t>(sample.value().group), sample.value().reward});
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
  const Status status = storage::for_each_line(
      path, file.size_bytes(), [&finder](std::string_view line) { return finder.take(line); });
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

}  // namespace tidemill::launcher
