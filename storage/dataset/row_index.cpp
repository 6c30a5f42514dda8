// SPDX-License-Identifier: Apache-2.0
#include "storage/dataset/row_index.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <glob.h>
#include <limits>
#include <span>
#include <utility>

#include "storage/dataset/array_rows.hpp"
#include "storage/dataset/parquet_rows.hpp"

namespace tidemill::storage {
namespace {

constexpr std::size_t kReadBytes = 1U << 20U;
constexpr std::size_t kMaxFiles = 100'000;
constexpr std::size_t kMaxSkippedKept = 10;
constexpr std::uint64_t kMaxIndexed = std::numeric_limits<std::uint32_t>::max() - 1;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// 32 bits of the digest. A changed row goes unnoticed with a probability of 1 in 4 billion.
std::uint32_t fingerprint(std::string_view text) {
  const std::string digest = digest_bytes(bytes_of(text));
  std::uint32_t bits = 0;
  std::from_chars(digest.data(), digest.data() + 8, bits, 16);
  return bits;
}

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r") == std::string_view::npos;
}

// A line of JSON Lines is an object, so a bracket begins the array of all rows.
bool is_array(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && text[first] == '[';
}

bool is_parquet(std::string_view text) {
  constexpr std::string_view kMagic = "PAR1";
  return text.substr(0, kMagic.size()) == kMagic;
}

std::uint64_t max_parquet_text(std::uint64_t file_bytes) {
  constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
  return file_bytes > kMax / kMaxParquetGrowth - kMinParquetText
             ? kMax
             : file_bytes * kMaxParquetGrowth + kMinParquetText;
}

// Says whether `glob` fails because of a folder that cannot be read. In a folder that does not
// exist nothing matches.
int ends_glob(const char* /*folder*/, int error) {
  return error == ENOENT ? 0 : 1;
}

Status add_matches(const std::string& pattern, std::vector<std::string>& files) {
  glob_t found{};
  // NOLINTNEXTLINE(concurrency-mt-unsafe): looks up users only for GLOB_TILDE
  const int outcome = ::glob(pattern.c_str(), GLOB_NOSORT, ends_glob, &found);
  const std::span<char*> paths(found.gl_pathv, outcome == 0 ? found.gl_pathc : 0);
  files.insert(files.end(), paths.begin(), paths.end());
  ::globfree(&found);
  if (outcome == GLOB_NOMATCH) {
    return {Errc::kNotFound, "`" + pattern + "` matches no file"};
  }
  if (outcome != 0) {
    return {Errc::kUnavailable, "`" + pattern + "`: a folder cannot be read"};
  }
  return {};
}

}  // namespace

Result<std::vector<std::string>> find_data_files(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code ignored;
    if (path.find('\0') != std::string::npos) {
      return invalid_argument("a path contains a NUL byte");
    }
    if (std::filesystem::exists(path, ignored)) {
      files.push_back(path);
    } else {
      TIDEMILL_RETURN_IF_ERROR(add_matches(path, files));
    }
  }
  std::sort(files.begin(), files.end());
  files.erase(std::unique(files.begin(), files.end()), files.end());
  if (files.size() > kMaxFiles) {
    return invalid_argument("more than 100000 files");
  }
  return files;
}

/// Reads the files and indexes their rows.
class RowIndex::Builder {
public:
  Builder(const DatasetOptions& options, const RowCheck& check, RowIndex& index)
      : options_(options), check_(check), index_(index) {}

  Status add_file(const std::string& path) {
    TIDEMILL_ASSIGN_OR_RETURN(const ReadableFile file, ReadableFile::open(path));
    begin_file(path);
    DigestHasher content;
    std::string chunk(std::min<std::uint64_t>(kReadBytes, file.size_bytes()), '\0');
    for (std::uint64_t offset = 0; offset < file.size_bytes();) {
      const std::size_t size = std::min<std::uint64_t>(kReadBytes, file.size_bytes() - offset);
      const std::span<char> bytes(chunk.data(), size);
      TIDEMILL_RETURN_IF_ERROR(file.read_at(offset, std::as_writable_bytes(bytes)));
      content.update(std::as_bytes(bytes));
      const std::string_view text(chunk.data(), size);
      if (offset == 0) {
        begin_kind(text);
      }
      if (kind_ != Kind::kParquet) {
        TIDEMILL_RETURN_IF_ERROR(kind_ == Kind::kArray ? located(array_->take(text)) : take(text));
      }
      offset += size;
    }
    TIDEMILL_RETURN_IF_ERROR(end_file(file));
    digest_part(std::filesystem::path(path).filename().string());
    digest_part(std::to_string(file.size_bytes()));
    digest_part(content.digest());
    return {};
  }

  void finish() {
    digest_part(std::to_string(index_.rows_.size()));
    digest_part(std::to_string(index_.num_skipped_));
    index_.digest_ = digest_.digest();
    index_.rows_.shrink_to_fit();
  }

private:
  enum class Kind : std::uint8_t { kLines, kArray, kParquet };

  void begin_file(const std::string& path) {
    index_.files_.push_back(path);
    index_.in_spool_.push_back(false);
    kind_ = Kind::kLines;
    array_.reset();
    has_location_ = false;
    line_ = {};
    text_.clear();
  }

  // Takes the kind of the file from its first bytes.
  void begin_kind(std::string_view text) {
    if (is_parquet(text)) {
      kind_ = Kind::kParquet;
    } else if (is_array(text)) {
      kind_ = Kind::kArray;
      array_.emplace(options_.max_line_bytes, [this](const RowText& row) { return add(row); });
    }
  }

  Status end_file(const ReadableFile& file) {
    switch (kind_) {
      case Kind::kLines: break;
      case Kind::kArray: return located(array_->finish());
      case Kind::kParquet: return add_parquet_rows(file);
    }
    return line_.size_bytes > 0 ? end_line() : Status();  // the last line has no newline
  }

  Status add_parquet_rows(const ReadableFile& file) {
    if (!index_.spool_.has_value()) {
      TIDEMILL_ASSIGN_OR_RETURN(index_.spool_, RowSpool::create(options_.temporary_folder));
    }
    index_.in_spool_.back() = true;
    const ParquetInput input{file.size_bytes(),
                             [&](std::uint64_t offset, std::span<std::byte> bytes) {
                               Status read = file.read_at(offset, bytes);
                               has_location_ = has_location_ || !read.ok();
                               return read;
                             }};
    // Skipped rows count too: they bound the time that a small file can take.
    std::uint64_t text_bytes = 0;
    const OnParquetRow on_row = [&](const ParquetRow& row) -> Status {
      TIDEMILL_RETURN_IF_ERROR(add_parquet_row(row));
      text_bytes += row.too_long ? options_.max_line_bytes : row.text.size();
      return text_bytes <= max_parquet_text(file.size_bytes())
                 ? Status()
                 : invalid_argument("its rows are more than " + std::to_string(kMaxParquetGrowth) +
                                    " times as large as the file");
    };
    const Status read =
        read_parquet_rows(input, {options_.max_line_bytes, options_.max_rows}, on_row);
    if (!read.ok()) {
      return has_location_ ? read : read.with_context(file.path().string());
    }
    return index_.spool_->flush();
  }

  Status add_parquet_row(const ParquetRow& row) {
    RowText text{row.text, index_.spool_->size_bytes(), row.text.size(), row.number};
    if (!row.problem.ok()) {
      Status refused = refuse({index_.files_.back(), row.number}, row.problem);
      has_location_ = !refused.ok();
      return refused;
    }
    if (row.too_long) {
      text.size_bytes = options_.max_line_bytes + 1;
    }
    const std::size_t num_rows = index_.rows_.size();
    TIDEMILL_RETURN_IF_ERROR(add(text));
    return index_.rows_.size() == num_rows ? Status() : index_.spool_->append(row.text).status();
  }

  // Adds the line to an error of the array itself. Those of its rows have a location already.
  [[nodiscard]] Status located(const Status& status) const {
    return status.ok() || has_location_
               ? status
               : status.with_context(RowLocation{index_.files_.back(), array_->line()}.to_string());
  }

  // Cuts `bytes` into lines. Of a line that is too long, only the length is kept.
  Status take(std::string_view bytes) {
    while (!bytes.empty()) {
      const std::size_t newline = bytes.find('\n');
      const std::string_view part = bytes.substr(0, newline);
      line_.size_bytes += part.size();
      if (line_.size_bytes <= options_.max_line_bytes) {
        text_.append(part);
      }
      if (newline == std::string_view::npos) {
        return {};
      }
      TIDEMILL_RETURN_IF_ERROR(end_line());
      line_ = {{}, line_.offset + line_.size_bytes + 1, 0, line_.line + 1};
      text_.clear();
      bytes.remove_prefix(newline + 1);
    }
    return {};
  }

  Status end_line() {
    line_.text = text_;
    return line_.size_bytes <= options_.max_line_bytes && is_blank(text_) ? Status() : add(line_);
  }

  Status add(const RowText& row) {
    Status added = check_and_index(row);
    has_location_ = !added.ok();
    return added;
  }

  Status check_and_index(const RowText& row) {
    const RowLocation location{index_.files_.back(), row.line};
    if (row.size_bytes > options_.max_line_bytes) {
      return refuse(location, invalid_argument((kind_ == Kind::kLines ? "line" : "row") +
                                               std::string(" is longer than ") +
                                               std::to_string(options_.max_line_bytes) + " bytes"));
    }
    if (Status checked = check_(row.text); !checked.ok()) {
      return refuse(location, std::move(checked));
    }
    const std::uint64_t max_rows = std::min(options_.max_rows, kMaxIndexed);
    if (index_.rows_.size() >= max_rows || row.line > kMaxIndexed) {
      return {Errc::kResourceExhausted,
              location.to_string() + ": more than " + std::to_string(max_rows) + " rows or lines"};
    }
    index_.rows_.push_back({.offset = row.offset,
                            .size_bytes = static_cast<std::uint32_t>(row.size_bytes),
                            .fingerprint = fingerprint(row.text),
                            .line = static_cast<std::uint32_t>(row.line),
                            .file = static_cast<std::uint32_t>(index_.files_.size() - 1)});
    return {};
  }

  Status refuse(const RowLocation& location, Status why) {
    why = why.with_context(location.to_string());
    if (options_.on_error == OnRowError::kError) {
      return why;
    }
    ++index_.num_skipped_;
    if (index_.first_skipped_.size() < kMaxSkippedKept) {
      index_.first_skipped_.push_back(why.message());
    }
    return {};
  }

  // Each part follows its length, so that different lists of parts never digest the same bytes.
  void digest_part(std::string_view part) {
    const std::string size = std::to_string(part.size()) + ":";
    digest_.update(bytes_of(size));
    digest_.update(bytes_of(part));
  }

  const DatasetOptions& options_;
  const RowCheck& check_;
  RowIndex& index_;
  DigestHasher digest_;
  Kind kind_ = Kind::kLines;        // of the current file
  std::optional<ArrayRows> array_;  // if the file is one JSON array
  bool has_location_ = false;       // the last error names its location
  RowText line_;                    // the current line of other files
  std::string text_;                // its text
};

Result<std::unique_ptr<RowIndex>> RowIndex::build(const DatasetOptions& options,
                                                  const RowCheck& check) {
  if (options.paths.empty()) {
    return invalid_argument("no data file given");
  }
  if (options.max_line_bytes == 0 || options.max_line_bytes > kMaxIndexed) {
    return invalid_argument("max_line_bytes: must be from 1 to " + std::to_string(kMaxIndexed));
  }
  TIDEMILL_ASSIGN_OR_RETURN(const std::vector<std::string> files, find_data_files(options.paths));
  std::unique_ptr<RowIndex> index(new RowIndex);
  Builder builder(options, check, *index);
  for (const std::string& file : files) {
    TIDEMILL_RETURN_IF_ERROR(builder.add_file(file));
  }
  builder.finish();
  if (index->rows_.empty()) {
    return invalid_argument(
        files.front() + ": no usable row" + (files.size() > 1 ? " in it or the other files" : "") +
        (index->first_skipped_.empty() ? ""
                                       : "; the first skipped: " + index->first_skipped_.front()));
  }
  return index;
}

RowLocation RowIndex::location(std::uint64_t number) const {
  const RowEntry& row = rows_[number];
  return {files_[row.file], row.line};
}

Status RowIndex::open(const std::string& path) {
  if (!open_file_ || open_file_->path() != path) {
    TIDEMILL_ASSIGN_OR_RETURN(open_file_, ReadableFile::open(path));
  }
  return {};
}

Result<std::string> RowIndex::read(std::uint64_t number) {
  const RowEntry& row = rows_[number];
  const bool in_spool = in_spool_[row.file];
  if (!in_spool) {
    TIDEMILL_RETURN_IF_ERROR(open(files_[row.file]));
  }
  std::string text(row.size_bytes, '\0');
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(text));
  const Status read =
      in_spool ? spool_->read_at(row.offset, bytes) : open_file_->read_at(row.offset, bytes);
  if (read.code() == Errc::kUnavailable) {
    return read;
  }
  if (!read.ok() || fingerprint(text) != row.fingerprint) {
    return corrupt_data(location(number).to_string() +
                        ": the file has changed since the data was read");
  }
  return text;
}

}  // namespace tidemill::storage
