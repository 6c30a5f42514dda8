// SPDX-License-Identifier: Apache-2.0
// How much of the record files (`metrics.jsonl`, `samples.jsonl`) belongs to a commit, and whether
// the files still hold it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "base/digest.hpp"
#include "base/files/file.hpp"
#include "base/result.hpp"

namespace tidemill::storage {

/// The sizes and digests of the record files at a commit. A resumed run truncates the files to
/// these sizes. A digest is empty if it is unknown, as in older commits and in simulation.
struct RecordMarks {
  std::uint64_t metrics_bytes = 0;
  std::uint64_t samples_bytes = 0;
  std::string metrics_digest = {};
  std::string samples_digest = {};
  friend bool operator==(const RecordMarks&, const RecordMarks&) = default;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, RecordMarks& x) {
  return f(x.metrics_bytes, x.samples_bytes, x.metrics_digest, x.samples_digest);
}

/// Adds the first `bytes` bytes of `path` to `hasher`, which must be new. If `bytes` is 0, the file
/// need not exist.
/// Errors: `kCorruptData` naming the file if it is missing or shorter, or if `digest` is not empty
/// and differs from the digest of these bytes; those of `ReadableFile`.
[[nodiscard]] Status read_marked(const std::filesystem::path& path, std::uint64_t bytes,
                                 const std::string& digest, DigestHasher& hasher);

/// The marked bytes of the record files, which have been read and match their marks.
struct CheckedRecords {
  RecordMarks marks;
  std::unique_ptr<DigestHasher> metrics;  // of the marked bytes; more may follow
  std::unique_ptr<DigestHasher> samples;
};

/// Checks that the record files in `directory` hold what `marks` says. Reads both files.
/// Errors: as `read_marked`.
[[nodiscard]] Result<CheckedRecords> check_records(const std::filesystem::path& directory,
                                                   const RecordMarks& marks);

/// Checks that the record files in `directory` are at least as long as `marks` says.
/// Errors: `kCorruptData` naming the file.
[[nodiscard]] Status check_record_sizes(const std::filesystem::path& directory,
                                        const RecordMarks& marks);

/// What is left of records.
struct RemainingRecords {
  RecordMarks marks;
  std::uint64_t dropped_metrics = 0;  // lines of metrics.jsonl that could not be read
  std::uint64_t dropped_samples = 0;  // likewise, of samples.jsonl
};

/// Finds what is left of the records that `marks` describes: in each file, the whole lines before
/// the mark, up to the first line of a step after `last_step`. Removes the lines among them that
/// cannot be read, by writing the file again. Does not notice changed bytes that leave a line
/// readable.
/// Errors: those of `ReadableFile`, except for a file that does not exist; those of `DurableFile`.
[[nodiscard]] Result<RemainingRecords> keep_readable_records(FileSystem& files,
                                                             const std::filesystem::path& directory,
                                                             const RecordMarks& marks,
                                                             std::uint64_t last_step);

}  // namespace tidemill::storage
