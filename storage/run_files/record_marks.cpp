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

std::optional<std::uint64_t> step_of_readable_sample(std::string_view text) {
  const auto line = parse_sample_line(text);
  return line.ok() ? std::optional(line.value().step) : std::nullopt;
}

using StepOfLine = std::optional<std::uint64_t> (*)(std::string_view);

// What is left of one record file.
struct RemainingFile {
  std::uint64_t bytes = 0;
  std::uint64_t dropped = 0;
  std::string digest = DigestHasher().digest();
};

// Passes the readable lines before the mark, up to the first line of a later step, to `take`, with
// their newlines. Returns how many lines between them cannot be read.
Result<std::uint64_t> for_each_readable_line(const std::filesystem::path& path, std::uint64_t bytes,
                                             std::uint64_t last_step, StepOfLine step_of,
                                             const std::function<Status(std::string_view)>& take) {
  std::uint64_t unreadable = 0;
  bool later = false;
  TIDEMILL_RETURN_IF_ERROR(for_each_line(path, bytes, [&](std::string_view line) -> Status {
    const std::optional<std::uint64_t> step = step_of(line);
    later = later || step.value_or(0) > last_step;
    if (later) {
      return {};
    }
    if (!step.has_value()) {
      ++unreadable;
      return {};
    }
    return take(std::string(line) + '\n');
  }));
  return unreadable;
}

Result<RemainingFile> keep_readable_lines(FileSystem& files, const std::filesystem::path& path,
                                          std::uint64_t marked, std::uint64_t last_step,
                                          StepOfLine step_of) {
  RemainingFile left;
  const auto file = ReadableFile::open(path);
  if (file.status().code() == Errc::kNotFound) {
    return left;
  }
  TIDEMILL_RETURN_IF_ERROR(file.status());
  const std::uint64_t bytes = std::min(marked, file.value().size_bytes());
  DigestHasher hasher;
  TIDEMILL_ASSIGN_OR_RETURN(
      left.dropped,
      for_each_readable_line(path, bytes, last_step, step_of, [&](std::string_view line) -> Status {
        left.bytes += line.size();
        hasher.update(std::as_bytes(std::span(line)));
        return {};
      }));
  left.digest = hasher.digest();
  if (left.dropped > 0) {
    DurableFile again(files, path);
    TIDEMILL_RETURN_IF_ERROR(
        for_each_readable_line(path, bytes, last_step, step_of, [&](std::string_view line) {
          return again.write(std::as_bytes(std::span(line)));
        }).status());
    TIDEMILL_RETURN_IF_ERROR(again.commit());
  }
  return left;
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

Result<CheckedRecords> check_records(const std::filesystem::path& directory,
                                     const RecordMarks& marks) {
  CheckedRecords checked{marks, std::make_unique<DigestHasher>(), std::make_unique<DigestHasher>()};
  TIDEMILL_RETURN_IF_ERROR(read_marked(directory / kMetricsFile, marks.metrics_bytes,
                                       marks.metrics_digest, *checked.metrics));
  TIDEMILL_RETURN_IF_ERROR(read_marked(directory / kSamplesFile, marks.samples_bytes,
                                       marks.samples_digest, *checked.samples));
  return checked;
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

Result<RemainingRecords> keep_readable_records(FileSystem& files,
                                               const std::filesystem::path& directory,
                                               const RecordMarks& marks, std::uint64_t last_step) {
  TIDEMILL_ASSIGN_OR_RETURN(
      const RemainingFile metrics,
      keep_readable_lines(files, directory / kMetricsFile, marks.metrics_bytes, last_step,
                          step_of_metrics_line));
  TIDEMILL_ASSIGN_OR_RETURN(
      const RemainingFile samples,
      keep_readable_lines(files, directory / kSamplesFile, marks.samples_bytes, last_step,
                          step_of_readable_sample));
  return RemainingRecords{{metrics.bytes, samples.bytes, metrics.digest, samples.digest},
                          metrics.dropped,
                          samples.dropped};
}

}  // namespace tidemill::storage
