// SPDX-License-Identifier: Apache-2.0
#include "storage/jobs/file_store.hpp"

#include <fcntl.h>
#include <limits>
#include <utility>

#include "base/text/quote.hpp"
#include "base/text/utf8.hpp"
#include "storage/jobs/job_directory_parts.hpp"

namespace tidemill::storage {
namespace {

Status check_new_file(const NewFile& file, std::uint64_t bytes, const FileLimits& limits) {
  if (file.purpose != kFineTunePurpose && file.purpose != kResultsPurpose) {
    return invalid_argument("purpose: must be " + quote(kFineTunePurpose) + ", and not " +
                            quote(file.purpose));
  }
  if (file.filename.empty() || file.filename.size() > FileStore::kMaxFilenameBytes ||
      has_control(file.filename) || find_invalid_utf8(file.filename).has_value()) {
    return invalid_argument("filename: must be 1 to " +
                            std::to_string(FileStore::kMaxFilenameBytes) +
                            " bytes of UTF-8 without control characters");
  }
  if (bytes == 0 || bytes > limits.max_file_bytes) {
    return invalid_argument("file: must have 1 to " + std::to_string(limits.max_file_bytes) +
                            " bytes, and has " + std::to_string(bytes));
  }
  return {};
}

StoredFile row_of(const Statement& row) {
  return {row.text(0), row.text(1), row.text(2), static_cast<std::uint64_t>(row.integer(3)),
          row.integer(4)};
}

// Returns the number of a file in the order of creation. The caller holds the mutex.
Result<std::int64_t> number_of(Database& database, const std::string& id) {
  TIDEMILL_ASSIGN_OR_RETURN(Statement row,
                            database.query("SELECT number FROM files WHERE id = ?1", id));
  TIDEMILL_ASSIGN_OR_RETURN(const bool found, row.step());
  return found ? Result<std::int64_t>(row.integer(0)) : no_such("file", id);
}

}  // namespace

Result<std::shared_ptr<FileStore>> FileStore::open(std::shared_ptr<JobDirectory> directory,
                                                   const FileLimits& limits) {
  std::shared_ptr<FileStore> store(new FileStore(std::move(directory), limits));
  TIDEMILL_RETURN_IF_ERROR(store->remove_leftovers());
  return store;
}

Result<bool> FileStore::is_stored(const std::string& id) {
  auto& parts = directory_->parts();
  TIDEMILL_ASSIGN_OR_RETURN(Statement row,
                            parts.database->query("SELECT 1 FROM files WHERE id = ?1", id));
  return row.step();
}

Status FileStore::remove_leftovers() {
  auto& parts = directory_->parts();
  const std::lock_guard lock(parts.mutex);
  TIDEMILL_RETURN_IF_ERROR(remove_temporary_files(parts.files, parts.folder()));
  TIDEMILL_ASSIGN_OR_RETURN(const std::vector<std::string> names, list_directory(parts.folder()));
  for (const std::string& name : names) {
    if (!is_id(name, kFileIdPrefix)) {
      continue;  // not ours
    }
    TIDEMILL_ASSIGN_OR_RETURN(const bool stored, is_stored(name));
    if (!stored) {
      // It may be what a killed `put` has left, or a file whose row was lost. If it cannot be
      // moved, as on a full disk, it does no harm where it is, and the next `open` tries again.
      (void)set_aside(parts.files, parts.root, parts.path_of(name));
    }
  }
  return {};
}

// Counts the file as stored, and returns an id for it.
Result<std::string> FileStore::reserve(std::uint64_t bytes) {
  auto& parts = directory_->parts();
  const std::lock_guard lock(parts.mutex);
  TIDEMILL_ASSIGN_OR_RETURN(
      Statement sums, parts.database->query("SELECT count(*), coalesce(sum(bytes), 0) FROM files"));
  TIDEMILL_RETURN_IF_ERROR(sums.step().status());
  if (static_cast<std::uint64_t>(sums.integer(0)) + reserved_files_ >= limits_.max_files) {
    return Status(Errc::kResourceExhausted, "file: the server has " +
                                                std::to_string(limits_.max_files) +
                                                " files, its limit; delete some of them");
  }
  if (static_cast<std::uint64_t>(sums.integer(1)) + reserved_bytes_ + bytes >
      limits_.max_total_bytes) {
    return Status(Errc::kResourceExhausted, "file: all files together would have more than " +
                                                std::to_string(limits_.max_total_bytes) +
                                                " bytes; delete some of them");
  }
  constexpr int kAttempts = 100;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    std::string id = parts.make_id(kFileIdPrefix);
    TIDEMILL_ASSIGN_OR_RETURN(const bool taken, is_stored(id));
    if (!taken) {
      ++reserved_files_;
      reserved_bytes_ += bytes;
      return id;
    }
  }
  return Status(Errc::kInternal, "file: the random bits give only ids that are taken");
}

Status FileStore::insert(const StoredFile& file) {
  return directory_->parts().database->execute(
      "INSERT INTO files(id, filename, purpose, bytes, created_at) VALUES(?1, ?2, ?3, ?4, ?5)",
      file.id, file.filename, file.purpose, static_cast<std::int64_t>(file.bytes), file.created_at);
}

Result<StoredFile> FileStore::put(const NewFile& file, std::span<const std::byte> bytes) {
  TIDEMILL_RETURN_IF_ERROR(check_new_file(file, bytes.size(), limits_));
  auto& parts = directory_->parts();
  TIDEMILL_ASSIGN_OR_RETURN(const std::string id, reserve(bytes.size()));
  StoredFile stored{id, file.filename, file.purpose, bytes.size(), file.created_at};
  Status status = write_file(parts.files, parts.path_of(id), bytes);
  // After an I/O error of the database, the row may exist. The next `open` finds out, and sets the
  // bytes aside if it does not.
  bool may_have_row = false;
  {
    // One lock for both, or another thread counts the row and the reservation.
    const std::lock_guard lock(parts.mutex);
    if (status.ok()) {
      status = insert(stored);
      may_have_row = status.code() == Errc::kUnavailable || status.code() == Errc::kCorruptData;
    }
    --reserved_files_;
    reserved_bytes_ -= bytes.size();
  }
  if (!status.ok() && !may_have_row) {
    // The bytes may have their name. If they cannot be removed, the next `open` sets them aside.
    (void)parts.files.remove(AT_FDCWD, parts.path_of(id).string(), EntryKind::kFile);
  }
  TIDEMILL_RETURN_IF_ERROR(status);
  return stored;
}

Status FileStore::put_example(const std::string& id, const NewFile& file,
                              std::span<const std::byte> bytes) {
  auto& parts = directory_->parts();
  {
    const std::lock_guard lock(parts.mutex);
    examples_.insert(id);
  }
  if (const auto found = find(id); found.ok() || found.status().code() != Errc::kNotFound) {
    return found.status();
  }
  TIDEMILL_RETURN_IF_ERROR(check_new_file(file, bytes.size(), limits_));
  TIDEMILL_RETURN_IF_ERROR(write_file(parts.files, parts.path_of(id), bytes));
  const std::lock_guard lock(parts.mutex);
  return insert({id, file.filename, file.purpose, bytes.size(), file.created_at});
}

Result<StoredFile> FileStore::find(const std::string& id) {
  auto& parts = directory_->parts();
  const std::lock_guard lock(parts.mutex);
  TIDEMILL_ASSIGN_OR_RETURN(
      Statement row,
      parts.database->query(
          "SELECT id, filename, purpose, bytes, created_at FROM files WHERE id = ?1", id));
  TIDEMILL_ASSIGN_OR_RETURN(const bool found, row.step());
  return found ? Result<StoredFile>(row_of(row)) : no_such("file", id);
}

Result<FilePage> FileStore::list(const FileQuery& query) {
  auto& parts = directory_->parts();
  const std::lock_guard lock(parts.mutex);
  const bool oldest_first = query.order == FileOrder::kOldestFirst;
  std::int64_t after = oldest_first ? 0 : std::numeric_limits<std::int64_t>::max();
  if (!query.after.empty()) {
    TIDEMILL_ASSIGN_OR_RETURN(after, number_of(*parts.database, query.after));
  }
  const char* sql = oldest_first
                        ? "SELECT id, filename, purpose, bytes, created_at FROM files WHERE "
                          "number > ?1 AND (?2 = '' OR purpose = ?2) ORDER BY number LIMIT ?3"
                        : "SELECT id, filename, purpose, bytes, created_at FROM files WHERE "
                          "number < ?1 AND (?2 = '' OR purpose = ?2) ORDER BY number DESC LIMIT ?3";
  TIDEMILL_ASSIGN_OR_RETURN(Statement rows, parts.database->query(sql, after, query.purpose,
                                                                  std::int64_t{query.limit} + 1));
  FilePage page;
  for (;;) {
    TIDEMILL_ASSIGN_OR_RETURN(const bool found, rows.step());
    if (!found) {
      return page;
    }
    if (page.entries.size() == query.limit) {
      page.has_more = true;
      return page;
    }
    page.entries.push_back(row_of(rows));
  }
}

Result<ReadableFile> FileStore::open_bytes(const std::string& id) {
  TIDEMILL_ASSIGN_OR_RETURN(const StoredFile file, find(id));
  const std::filesystem::path path = directory_->parts().path_of(id);
  auto opened = ReadableFile::open(path);
  if (!opened.ok() && opened.status().code() == Errc::kNotFound) {
    // Another thread may have removed the file since.
    TIDEMILL_RETURN_IF_ERROR(find(id).status());
    return corrupt_data(path.string() + ": the bytes of the file are missing; delete the file");
  }
  if (opened.ok() && opened.value().size_bytes() != file.bytes) {
    return corrupt_data(path.string() + ": has " + std::to_string(opened.value().size_bytes()) +
                        " bytes instead of " + std::to_string(file.bytes));
  }
  return opened;
}

Status FileStore::remove(const std::string& id) {
  auto& parts = directory_->parts();
  {
    const std::lock_guard lock(parts.mutex);
    Transaction transaction(*parts.database);
    TIDEMILL_RETURN_IF_ERROR(transaction.begun());
    TIDEMILL_ASSIGN_OR_RETURN(const bool found, is_stored(id));
    if (!found) {
      return no_such("file", id);
    }
    if (examples_.contains(id)) {
      return invalid_argument(id + ": is the example that the server offers (" +
                              "serve.tuning.example), and cannot be deleted");
    }
    TIDEMILL_ASSIGN_OR_RETURN(Statement users,
                              parts.database->query("SELECT id FROM jobs WHERE has_ended = 0 AND "
                                                    "(training_file = ?1 OR validation_file = ?1)",
                                                    id));
    TIDEMILL_ASSIGN_OR_RETURN(const bool used, users.step());
    if (used) {
      return invalid_argument(id + ": the job " + users.text(0) + " uses the file");
    }
    TIDEMILL_RETURN_IF_ERROR(parts.database->execute("DELETE FROM files WHERE id = ?1", id));
    TIDEMILL_RETURN_IF_ERROR(transaction.commit());
  }
  (void)remove_file(parts.files, parts.path_of(id)).ok();
  return {};
}

}  // namespace tidemill::storage
