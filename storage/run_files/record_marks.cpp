// SPDX-License-Identifier: Apache-2.0
#include "storage/run_files/record_marks.hpp"

#include <algorithm>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/files/file.hpp"
#include "storage/run_files/lines.hpp"
#include "storage/run_files/metrics_line.hpp"
#include "storage/run_files/sample_line.hpp"

namespace tidemill::storage {
namespace {

constexpr std::size_t kReadBytes = std::size_t{1} << 20U;

Status too_short(const std::filesystem::path& path, const std::string& found,
                 std::uint64_t marked) {
  return corrupt_data(path.string() + ": " + found + ", but the last commit recorded " +
                      std::to_string(marked) + (found == "missing" ? " bytes" : ""));
}

std::optional<std::uint64_t> step_of_metrics_line(std::string_view text) {
  const auto line = parse_metrics_line(text);
  return line.ok() ? std::optional(line.value().step) : std::nullopt;
}

using StepOfLine = std::optional<std::uint64_t> (*)(std::string_view);

// Returns the size of the whole lines before the mark, up to the first line of a later step.
Result<std::uint64_t> remaining_bytes(const std::filesystem::path& path, std::uint64_t marked,
                                      std::uint64_t last_step, StepOfLine step_of) {
  const auto file = ReadableFile::open(path);
  if (file.status().code() == Errc::kNotFound) {
    return std::uint64_t{0};
  }
  TIDEMILL_RETURN_IF_ERROR(file.status());
  std::uint64_t kept = 0;
  bool later = false;
  TIDEMILL_RETURN_IF_ERROR(for_each_line(path, std::min(marked, file.value().size_bytes()),
                                         [&](std::string_view line) -> Status {
                                           later = later || step_of(line).value_or(0) > last_step;
                                           kept += later ? 0 : line.size() + 1;
                                           return {};
                                         }));
  return kept;
}

}  // namespace

Status read_marked(const std::filesystem::path& path, std::uint64_t bytes,
                   const std::string& digest, DigestHasher& hasher) {
  if (bytes == 0) {
    return {};
  }
  const auto file = ReadableFile::open(path);
  if (file.status().code() == Errc::kNotFound) {
    return too_short(path, "missing", bytes);
  }
  TIDEMILL_RETURN_IF_ERROR(file.status());
  if (file.value().size_bytes() < bytes) {
    return too_short(path, std::to_string(file.value().size_bytes()) + " bytes", bytes);
  }
  std::vector<std::byte> block(
      static_cast<std::size_t>(std::min<std::uint64_t>(kReadBytes, bytes)));
  for (std::uint64_t offset = 0; offset < bytes;) {
    const auto size =
        static_cast<std::size_t>(std::min<std::uint64_t>(block.size(), bytes - offset));
    const auto part = std::span(block).first(size);
    TIDEMILL_RETURN_IF_ERROR(file.value().read_at(offset, part));
    hasher.update(part);
    offset += size;
  }
  if (!digest.empty() && hasher.digest() != digest) {
    return corrupt_data(path.string() + ": the " + std::to_string(bytes) +
                        " bytes that the last commit recorded have changed");
  }
  return {};
}

Status check_records(const std::filesystem::path& directory, const RecordMarks& marks) {
  DigestHasher metrics;
  DigestHasher samples;
  TIDEMILL_RETURN_IF_ERROR(
      read_marked(directory / kMetricsFile, marks.metrics_bytes, marks.metrics_digest, metrics));
  return read_marked(directory / kSamplesFile, marks.samples_bytes, marks.samples_digest, samples);
}

Status check_record_sizes(const std::filesystem::path& directory, const RecordMarks& marks) {
  for (const auto& [name, bytes] : {std::pair{kMetricsFile, marks.metrics_bytes},
                                    std::pair{kSamplesFile, marks.samples_bytes}}) {
    std::error_code error;
    const std::uintmax_t size = std::filesystem::file_size(directory / name, error);
    if (bytes > 0 && error == std::errc::no_such_file_or_directory) {
      return corrupt_data((directory / name).string() + ": was removed during the run");
    }
    if (!error && size < bytes) {
      return corrupt_data((directory / name).string() + ": was shortened during the run");
    }
  }
  return {};
}

Result<RecordMarks> remaining_records(const std::filesystem::path& directory,
                                      const RecordMarks& marks, std::uint64_t last_step) {
  RecordMarks left;
  DigestHasher metrics;
  DigestHasher samples;
  TIDEMILL_ASSIGN_OR_RETURN(
      left.metrics_bytes, remaining_bytes(directory / kMetricsFile, marks.metrics_bytes, last_step,
                                          step_of_metrics_line));
  TIDEMILL_ASSIGN_OR_RETURN(
      left.samples_bytes, remaining_bytes(directory / kSamplesFile, marks.samples_bytes, last_step,
                                          step_of_sample_line));
  TIDEMILL_RETURN_IF_ERROR(read_marked(directory / kMetricsFile, left.metrics_bytes, "", metrics));
  TIDEMILL_RETURN_IF_ERROR(read_marked(directory / kSamplesFile, left.samples_bytes, "", samples));
  left.metrics_digest = metrics.digest();
  left.samples_digest = samples.digest();
  return left;
}

}  // namespace tidemill::storage
