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

/// The sizes and digests of the record files when a commit was made. A resumed run truncates the
/// files to these sizes. A digest is empty if it is unknown, as in older commits and in simulation.
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

/// Adds the first `bytes` bytes of `path` to `hasher`, which must be new, and checks that their
/// digest is `digest`, unless that is empty. If `bytes` is 0, the file need not exist.
/// Errors: `kCorruptData` naming the file if it is missing or shorter, or if the digest differs;
/// those of `ReadableFile`.
[[nodiscard]] Status read_marked(const std::filesystem::path& path, std::uint64_t bytes,
                                 const std::string& digest, DigestHasher& hasher);

/// Record files whose marked bytes have been read and match `marks`.
struct CheckedRecords {
  RecordMarks marks;
  std::unique_ptr<DigestHasher> metrics;  // of the marked bytes; more may follow
  std::unique_ptr<DigestHasher> samples;
};

/// Checks that the record files in `directory` begin with the bytes that `marks` describes. Reads
/// these bytes.
/// Errors: as `read_marked`.
[[nodiscard]] Result<CheckedRecords> check_records(const std::filesystem::path& directory,
                                                   const RecordMarks& marks);

/// Checks that the record files in `directory` are at least as long as `marks` says. Called during
/// a run; does not read the files. Ignores a file whose size cannot be determined.
/// Errors: `kCorruptData` naming the file that was removed or shortened.
[[nodiscard]] Status check_record_sizes(const std::filesystem::path& directory,
                                        const RecordMarks& marks);

/// What `keep_readable_records` has kept and dropped.
struct RemainingRecords {
  RecordMarks marks;
  std::uint64_t dropped_metrics = 0;  // unreadable lines of metrics.jsonl
  std::uint64_t dropped_samples = 0;  // unreadable lines of samples.jsonl
};

/// Keeps the readable records that are left of those that `marks` describes: in each file, the
/// whole lines before the mark, up to the first line of a step after `last_step`. A file with
/// unreadable lines among them is rewritten without these lines. Returns the new marks. Accepts
/// changed bytes that leave a line readable.
/// Errors: those of `ReadableFile`, except for a file that does not exist; those of `DurableFile`.
[[nodiscard]] Result<RemainingRecords> keep_readable_records(FileSystem& files,
                                                             const std::filesystem::path& directory,
                                                             const RecordMarks& marks,
                                                             std::uint64_t last_step);

}  // namespace tidemill::storage
