// SPDX-License-Identifier: Apache-2.0
#include "storage/jobs/job_directory.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "base/text/quote.hpp"
#include "storage/jobs/job_directory_parts.hpp"

namespace tidemill::storage {
namespace {

constexpr std::size_t kIdLetters = 24;
constexpr std::string_view kAlphabet =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

// `number` gives the order of creation: ids are random, and times may repeat.
constexpr std::array kSchema = {
    R"(CREATE TABLE files(
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  filename TEXT NOT NULL,
  purpose TEXT NOT NULL,
  bytes INTEGER NOT NULL,
  created_at INTEGER NOT NULL) STRICT)",
    R"(CREATE TABLE jobs(
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  created_at INTEGER NOT NULL,
  finished_at INTEGER NOT NULL,
  state TEXT NOT NULL,
  has_ended INTEGER NOT NULL,
  training_file TEXT NOT NULL,
  validation_file TEXT NOT NULL,
  spec TEXT NOT NULL,
  resolved TEXT NOT NULL,
  fine_tuned_model TEXT NOT NULL,
  trained_tokens INTEGER NOT NULL,
  estimated_finish INTEGER NOT NULL,
  result_files TEXT NOT NULL,
  error_code TEXT NOT NULL,
  error_message TEXT NOT NULL,
  error_param TEXT NOT NULL,
  num_events INTEGER NOT NULL) STRICT)",
    R"(CREATE INDEX jobs_by_end ON jobs(has_ended, number))",
    R"(CREATE TABLE events(
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  job INTEGER NOT NULL REFERENCES jobs(number) ON DELETE CASCADE,
  created_at INTEGER NOT NULL,
  level INTEGER NOT NULL,
  type INTEGER NOT NULL,
  message TEXT NOT NULL,
  data TEXT NOT NULL) STRICT)",
    R"(CREATE INDEX events_by_job ON events(job, number))",
    R"(CREATE INDEX events_by_type ON events(job, type, number))",
    R"(CREATE TABLE checkpoints(
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  job INTEGER NOT NULL REFERENCES jobs(number) ON DELETE CASCADE,
  created_at INTEGER NOT NULL,
  step_number INTEGER NOT NULL,
  metrics TEXT NOT NULL,
  model TEXT NOT NULL,
  UNIQUE(job, step_number)) STRICT)",
};
constexpr DatabaseSchema kDatabase = {0x544D4A31, 1, kSchema};  // "TMJ1"

// Returns whether a folder has an entry whose name is an id.
Result<bool> has_ids(const std::filesystem::path& folder, std::string_view prefix) {
  const auto names = list_directory(folder);
  if (names.status().code() == Errc::kNotFound) {
    return false;
  }
  TIDEMILL_RETURN_IF_ERROR(names.status());
  return std::any_of(names.value().begin(), names.value().end(),
                     [prefix](const std::string& name) { return is_id(name, prefix); });
}

// Refuses a directory that has files or runs but no database, because all of them would be set
// aside.
Status check_database_exists(const std::filesystem::path& root) {
  std::error_code ignored;
  const std::filesystem::path path = root / "jobs.db";
  if (std::filesystem::exists(path, ignored) && std::filesystem::file_size(path, ignored) > 0) {
    return {};
  }
  TIDEMILL_ASSIGN_OR_RETURN(const bool has_files, has_ids(root / "files", kFileIdPrefix));
  TIDEMILL_ASSIGN_OR_RETURN(const bool has_runs, has_ids(root / "runs", kJobIdPrefix));
  return has_files || has_runs ? corrupt_data(path.string() + ": is missing, but there are " +
                                              (has_files ? "files" : "runs") +
                                              "; restore it, or move the directory away")
                               : Status();
}

}  // namespace

bool is_id(std::string_view text, std::string_view prefix) noexcept {
  return text.size() == prefix.size() + kIdLetters && text.starts_with(prefix) &&
         text.find_first_not_of(kAlphabet, prefix.size()) == std::string_view::npos;
}

bool is_job_id(std::string_view text) noexcept {
  return is_id(text, kJobIdPrefix);
}

Status set_aside(FileSystem& files, const std::filesystem::path& root,
                 const std::filesystem::path& entry) {
  const std::filesystem::path folder = root / "unlisted";
  TIDEMILL_RETURN_IF_ERROR(make_directory(files, folder));
  const int result = files.rename(entry, folder / entry.filename());
  return result < 0 ? system_error(-result, "move", entry) : Status();
}

Status no_such(std::string_view what, std::string_view id) {
  return {Errc::kNotFound, quote(id) + ": there is no such " + std::string(what)};
}

std::string JobDirectory::Parts::make_id(std::string_view prefix) {
  // A draw of 64 bits gives eight letters. Their distribution is uniform up to 62^8 / 2^64 = 1e-5.
  constexpr std::size_t kLettersOfDraw = 8;
  std::string id(prefix);
  std::uint64_t bits = 0;
  for (std::size_t i = 0; i < kIdLetters; ++i) {
    bits = i % kLettersOfDraw == 0 ? random_bits() : bits;
    id += kAlphabet[bits % kAlphabet.size()];
    bits /= kAlphabet.size();
  }
  return id;
}

JobDirectory::JobDirectory(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
JobDirectory::~JobDirectory() = default;

Result<std::shared_ptr<JobDirectory>> JobDirectory::open(JobDirectoryOptions options,
                                                         FileSystem& files) {
  TIDEMILL_RETURN_IF_ERROR(make_directory(files, options.path));
  TIDEMILL_RETURN_IF_ERROR(make_directory(files, options.path / "files"));
  TIDEMILL_ASSIGN_OR_RETURN(RunLock lock, RunLock::acquire(options.path));
  TIDEMILL_RETURN_IF_ERROR(check_database_exists(options.path));
  TIDEMILL_ASSIGN_OR_RETURN(
      std::unique_ptr<Database> database,
      Database::open(options.path / "jobs.db", kDatabase, options.max_database_bytes));
  if (const int result = files.sync_directory(options.path); result < 0) {
    return system_error(-result, "sync", options.path);
  }
  return std::make_shared<JobDirectory>(
      std::unique_ptr<Parts>(new Parts{std::move(lock),
                                       files,
                                       options.path,
                                       std::move(options.random_bits),
                                       std::move(database),
                                       DiskReserve(options.path / "reserve"),
                                       {}}));
}

}  // namespace tidemill::storage
