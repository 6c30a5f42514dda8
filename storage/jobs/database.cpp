// SPDX-License-Identifier: Apache-2.0
#include "storage/jobs/database.hpp"

#include <algorithm>
#include <cerrno>
#include <sqlite3.h>
#include <sys/stat.h>
#include <system_error>
#include <utility>

#include "base/text/clip.hpp"

namespace tidemill::storage {
namespace {

constexpr std::size_t kMaxReasonBytes = 200;
constexpr int kBusyMs = 5000;
constexpr int kMaxValueBytes = 8 << 20;  // of a text, a row or a statement
constexpr std::int64_t kPageBytes = 4096;

Errc code_of(int error) {
  switch (error & 0xFF) {
    case SQLITE_FULL:
    case SQLITE_NOMEM:
    case SQLITE_TOOBIG: return Errc::kResourceExhausted;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_FORMAT: return Errc::kCorruptData;
    case SQLITE_PERM:
    case SQLITE_READONLY:
    case SQLITE_AUTH: return Errc::kInvalidArgument;
    case SQLITE_CANTOPEN:
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_PROTOCOL:
    case SQLITE_IOERR: return Errc::kUnavailable;
    default: return Errc::kInternal;
  }
}

// Whether a write, or the growth of the shared index, has failed because there is no room. SQLite
// then undoes the transaction as after SQLITE_FULL. A sync that fails is no such error, because the
// transaction may be in the file.
bool is_full(int error, int system_error) {
  const bool writes = error == SQLITE_IOERR_WRITE || error == SQLITE_IOERR_SHMSIZE ||
                      error == SQLITE_IOERR_SHMOPEN || error == SQLITE_IOERR_SHMMAP ||
                      (error & 0xFF) == SQLITE_CANTOPEN;
  return writes && (system_error == ENOSPC || system_error == EDQUOT || system_error == EFBIG);
}

// Whether SQLite's idea of the file may be wrong after the error.
bool is_fatal(int error) {
  const int primary = error & 0xFF;
  return primary == SQLITE_IOERR || primary == SQLITE_CORRUPT || primary == SQLITE_NOTADB;
}

}  // namespace

// -- statements -----------------------------------------------------------------------------------

Statement::Statement(Statement&& other) noexcept
    : database_(other.database_),
      statement_(std::exchange(other.statement_, nullptr)),
      bind_error_(other.bind_error_) {}

Statement::~Statement() {
  sqlite3_finalize(statement_);
}

void Statement::bind(int index, std::int64_t value) {
  const int error = sqlite3_bind_int64(statement_, index, value);
  bind_error_ = bind_error_ == SQLITE_OK ? error : bind_error_;
}

void Statement::bind(int index, std::string_view value) {
  const int error = sqlite3_bind_text64(statement_, index, value.empty() ? "" : value.data(),
                                        value.size(), SQLITE_STATIC, SQLITE_UTF8);
  bind_error_ = bind_error_ == SQLITE_OK ? error : bind_error_;
}

Result<bool> Statement::step() {
  TIDEMILL_RETURN_IF_ERROR(database_->failure_);
  const int result = bind_error_ != SQLITE_OK ? bind_error_ : sqlite3_step(statement_);
  if (result != SQLITE_ROW && result != SQLITE_DONE) {
    return database_->failed(result);
  }
  return result == SQLITE_ROW;
}

std::int64_t Statement::integer(int column) const {
  return sqlite3_column_int64(statement_, column);
}

std::string Statement::text(int column) const {
  const void* bytes = sqlite3_column_blob(statement_, column);
  const int size = sqlite3_column_bytes(statement_, column);
  return bytes == nullptr
             ? std::string()
             : std::string(static_cast<const char*>(bytes), static_cast<std::size_t>(size));
}

// -- the database ---------------------------------------------------------------------------------

Result<std::unique_ptr<Database>> Database::open(const std::filesystem::path& path,
                                                 const DatabaseSchema& schema,
                                                 std::uint64_t max_bytes) {
  sqlite3* handle = nullptr;
  const int error = sqlite3_open_v2(
      path.c_str(), &handle,
      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE,
      nullptr);
  if (handle == nullptr) {
    return Status(Errc::kResourceExhausted, path.string() + ": cannot open: no memory");
  }
  std::unique_ptr<Database> database(new Database(path, handle));
  if (error != SQLITE_OK) {
    return database->failed(error);
  }
  TIDEMILL_RETURN_IF_ERROR(database->set_up(schema, max_bytes));
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) {
    return Status(Errc::kUnavailable,
                  path.string() + ": cannot open: " + std::generic_category().message(errno));
  }
  database->device_ = found.st_dev;
  database->inode_ = found.st_ino;
  return database;
}

Database::~Database() {
  sqlite3_close_v2(handle_);
}

std::int64_t Database::num_changed() const {
  return sqlite3_changes64(handle_);
}

Status Database::check_in_place() {
  TIDEMILL_RETURN_IF_ERROR(failure_);
  struct stat found {};
  if (inode_ == 0) {
    return {};  // is being opened
  }
  if (::stat(path_.c_str(), &found) != 0 || found.st_dev != device_ || found.st_ino != inode_) {
    failure_ = corrupt_data(path_.string() +
                            ": was removed or replaced while it was open; restart the server");
  }
  return failure_;
}

Status Database::failed(int code) {
  std::string reason =
      sqlite3_errcode(handle_) == code ? sqlite3_errmsg(handle_) : sqlite3_errstr(code);
  const bool is_io = (code & 0xFF) == SQLITE_IOERR || (code & 0xFF) == SQLITE_CANTOPEN;
  const int system_error = is_io ? sqlite3_system_errno(handle_) : 0;
  if (system_error != 0) {
    reason += std::string(": ") + std::generic_category().message(system_error);
  }
  const bool full = is_full(code, system_error);
  Status status(full ? Errc::kResourceExhausted : code_of(code),
                path_.string() + ": " + clipped(reason, kMaxReasonBytes));
  if (is_fatal(code) && !full) {
    failure_ = status;
  }
  return status;
}

Result<Statement> Database::prepare(const char* sql) {
  TIDEMILL_RETURN_IF_ERROR(failure_);
  sqlite3_stmt* statement = nullptr;
  const int error = sqlite3_prepare_v2(handle_, sql, -1, &statement, nullptr);
  if (error != SQLITE_OK) {
    return failed(error);
  }
  return Statement(*this, statement);
}

Status Database::finish(Statement& statement) {
  for (;;) {
    TIDEMILL_ASSIGN_OR_RETURN(const bool has_row, statement.step());
    if (!has_row) {
      return {};
    }
  }
}

Result<std::int64_t> Database::number(const char* sql) {
  TIDEMILL_ASSIGN_OR_RETURN(Statement statement, prepare(sql));
  TIDEMILL_ASSIGN_OR_RETURN(const bool has_row, statement.step());
  return has_row ? statement.integer(0) : 0;
}

Status Database::set_up(const DatabaseSchema& schema, std::uint64_t max_bytes) {
  sqlite3_busy_timeout(handle_, kBusyMs);
  sqlite3_limit(handle_, SQLITE_LIMIT_LENGTH, kMaxValueBytes);
  sqlite3_limit(handle_, SQLITE_LIMIT_ATTACHED, 0);
  // The schema of a file that another program made must not run anything.
  sqlite3_db_config(handle_, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  sqlite3_db_config(handle_, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
  sqlite3_db_config(handle_, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, nullptr);
  sqlite3_db_config(handle_, SQLITE_DBCONFIG_ENABLE_VIEW, 0, nullptr);
  TIDEMILL_RETURN_IF_ERROR(execute("PRAGMA cell_size_check = ON"));
  TIDEMILL_RETURN_IF_ERROR(execute("PRAGMA mmap_size = 0"));
  TIDEMILL_RETURN_IF_ERROR(execute("PRAGMA foreign_keys = ON"));
  TIDEMILL_ASSIGN_OR_RETURN(const std::int64_t objects,
                            number("SELECT count(*) FROM sqlite_schema"));
  TIDEMILL_RETURN_IF_ERROR(execute("PRAGMA journal_mode = WAL"));
  TIDEMILL_RETURN_IF_ERROR(execute("PRAGMA synchronous = FULL"));
  TIDEMILL_RETURN_IF_ERROR(execute("PRAGMA journal_size_limit = 16777216"));
  TIDEMILL_RETURN_IF_ERROR(objects == 0 ? create(schema) : check(schema));
  const auto pages = std::clamp<std::int64_t>(static_cast<std::int64_t>(max_bytes) / kPageBytes, 1,
                                              std::int64_t{1} << 30U);
  return execute(("PRAGMA max_page_count = " + std::to_string(pages)).c_str());
}

Status Database::create(const DatabaseSchema& schema) {
  Transaction transaction(*this);
  TIDEMILL_RETURN_IF_ERROR(transaction.begun());
  for (const char* statement : schema.statements) {
    TIDEMILL_RETURN_IF_ERROR(execute(statement));
  }
  TIDEMILL_RETURN_IF_ERROR(
      execute(("PRAGMA application_id = " + std::to_string(schema.application_id)).c_str()));
  TIDEMILL_RETURN_IF_ERROR(
      execute(("PRAGMA user_version = " + std::to_string(schema.version)).c_str()));
  return transaction.commit();
}

Status Database::check(const DatabaseSchema& schema) {
  TIDEMILL_ASSIGN_OR_RETURN(const std::int64_t application, number("PRAGMA application_id"));
  if (application != schema.application_id) {
    return corrupt_data(path_.string() + ": is the database of another program");
  }
  TIDEMILL_ASSIGN_OR_RETURN(const std::int64_t version, number("PRAGMA user_version"));
  if (version != schema.version) {
    return invalid_argument(path_.string() + ": has version " + std::to_string(version) +
                            ", and this program reads version " + std::to_string(schema.version));
  }
  TIDEMILL_ASSIGN_OR_RETURN(Statement statements,
                            prepare("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL AND "
                                    "name <> 'sqlite_sequence' ORDER BY rowid"));
  for (std::size_t i = 0;; ++i) {
    TIDEMILL_ASSIGN_OR_RETURN(const bool has_row, statements.step());
    if (!has_row && i == schema.statements.size()) {
      break;
    }
    if (!has_row || i == schema.statements.size() || statements.text(0) != schema.statements[i]) {
      return corrupt_data(path_.string() + ": has other tables than this program makes");
    }
  }
  TIDEMILL_ASSIGN_OR_RETURN(Statement problems, prepare("PRAGMA quick_check(1)"));
  TIDEMILL_ASSIGN_OR_RETURN(const bool has_row, problems.step());
  const std::string problem = has_row ? problems.text(0) : "cannot be checked";
  return problem == "ok"
             ? Status()
             : corrupt_data(path_.string() + ": is damaged: " + clipped(problem, kMaxReasonBytes));
}

// -- transactions ---------------------------------------------------------------------------------

Transaction::Transaction(Database& database)
    : database_(database), begun_(database.check_in_place()) {
  if (begun_.ok()) {
    begun_ = database.execute("BEGIN IMMEDIATE");
  }
  open_ = begun_.ok();
}

Transaction::~Transaction() {
  if (open_) {
    // Fails if SQLite has rolled back by itself, or after a fatal failure, which changes nothing.
    (void)database_.execute("ROLLBACK").ok();
  }
}

Status Transaction::commit() {
  TIDEMILL_RETURN_IF_ERROR(database_.execute("COMMIT"));
  open_ = false;
  return {};
}

}  // namespace tidemill::storage
