// SPDX-License-Identifier: Apache-2.0
// Private to storage/jobs. SQLite: a database file, its statements and transactions. No other file
// includes SQLite's header.
//
// Changes are durable once their transaction has been committed (`journal_mode` WAL and
// `synchronous` FULL). After an I/O error, or if the file is damaged, SQLite's idea of the file may
// be wrong: the database then refuses all further calls with the same failure, until the program
// opens it again. An error that says that the disk is full or a quota is used up is no such error.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/result.hpp"

struct sqlite3;
struct sqlite3_stmt;

namespace tidemill::storage {

class Database;

/// A prepared statement with its arguments.
///
/// Threads: as its database, which must outlive it.
class Statement {
public:
  Statement(Statement&& other) noexcept;
  Statement& operator=(Statement&&) = delete;
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;
  ~Statement();

  /// Goes to the next row. Returns false after the last one. Errors: as `Database::execute`.
  [[nodiscard]] Result<bool> step();

  /// Each returns a column of the current row, counted from 0.
  [[nodiscard]] std::int64_t integer(int column) const;
  [[nodiscard]] std::string text(int column) const;

private:
  friend class Database;
  Statement(Database& database, sqlite3_stmt* statement)
      : database_(&database), statement_(statement) {}
  void bind(int index, std::int64_t value);
  void bind(int index, std::string_view value);

  Database* database_;
  sqlite3_stmt* statement_;
  int bind_error_ = 0;  // the first one, which `step` reports
};

/// What a database must contain.
struct DatabaseSchema {
  std::int32_t application_id = 0;
  std::int32_t version = 1;
  /// The statements that make the tables and indexes. They are compared with those that the file
  /// names, so a file with other tables, with triggers or with views is refused.
  std::span<const char* const> statements;
};

/// An open database.
///
/// Threads: one call at a time. Waits for the disk.
class Database {
public:
  /// Opens the database `path`, or makes it. The caller must be the only user of the file.
  /// `max_bytes` bounds its size. Reads the whole file once to check it.
  /// Errors, all beginning with the path: `kCorruptData` if the file is damaged or is another
  /// database; `kInvalidArgument` if another version of the program made it, or it cannot be
  /// written; `kResourceExhausted` for a full disk or no memory; `kUnavailable`.
  [[nodiscard]] static Result<std::unique_ptr<Database>> open(const std::filesystem::path& path,
                                                              const DatabaseSchema& schema,
                                                              std::uint64_t max_bytes);

  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;
  ~Database();

  /// Prepares a statement with arguments, each an `std::int64_t` or a text. Borrows the texts until
  /// the statement is destroyed.
  /// Errors: `kInternal`; the failure of an earlier call, as told at the top of the file.
  template <class... Args>
  [[nodiscard]] Result<Statement> query(const char* sql, const Args&... args) {
    auto statement = prepare(sql);
    if (statement.ok()) {
      int index = 0;
      (statement.value().bind(++index, args), ...);
    }
    return statement;
  }

  /// Runs a statement that returns no rows, or whose rows do not matter.
  /// Errors: `kResourceExhausted` for a full disk, a full database, a text that is too long, or no
  /// memory; `kCorruptData` and `kUnavailable`, after which all calls fail.
  template <class... Args>
  [[nodiscard]] Status execute(const char* sql, const Args&... args) {
    TIDEMILL_ASSIGN_OR_RETURN(Statement statement, query(sql, args...));
    return finish(statement);
  }

  /// Returns the number of rows that the last `execute` has changed.
  [[nodiscard]] std::int64_t num_changed() const;

  /// Checks that the path still names the file that is open, whose changes would be lost otherwise.
  /// Errors: `kCorruptData`, after which all calls fail.
  [[nodiscard]] Status check_in_place();

private:
  friend class Statement;
  Database(std::filesystem::path path, sqlite3* handle) : path_(std::move(path)), handle_(handle) {}
  [[nodiscard]] Result<Statement> prepare(const char* sql);
  [[nodiscard]] static Status finish(Statement& statement);
  [[nodiscard]] Status failed(int code);
  [[nodiscard]] Status set_up(const DatabaseSchema& schema, std::uint64_t max_bytes);
  [[nodiscard]] Status create(const DatabaseSchema& schema);
  [[nodiscard]] Status check(const DatabaseSchema& schema);
  [[nodiscard]] Result<std::int64_t> number(const char* sql);

  std::filesystem::path path_;
  sqlite3* handle_;
  std::uint64_t device_ = 0;  // of the file, and its inode: both 0 until it is open
  std::uint64_t inode_ = 0;
  Status failure_;
};

/// Changes that take effect together. Destroying it without `commit` undoes them.
///
/// Threads: as the database, which must outlive it.
class Transaction {
public:
  /// Begins a transaction. Check `begun` before anything is changed.
  explicit Transaction(Database& database);
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;
  ~Transaction();

  /// Returns whether the transaction has begun. Errors: as `Database::execute`.
  [[nodiscard]] const Status& begun() const noexcept { return begun_; }
  /// Makes the changes durable. Requires that it has begun. Errors: as `Database::execute`; nothing
  /// has changed then.
  [[nodiscard]] Status commit();

private:
  Database& database_;
  Status begun_;
  bool open_ = false;
};

}  // namespace tidemill::storage
