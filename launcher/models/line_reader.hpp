// SPDX-License-Identifier: Apache-2.0
// Reads and writes JSON lines, through which other programs use the commands that work on a model.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json/json.hpp"
#include "base/result.hpp"

namespace tidemill::launcher {

/// One non-blank line of an input.
struct InputLine {
  std::string text;
  std::string location;     // as errors print it: "prompts.jsonl:17"
  std::uint64_t index = 0;  // counts the non-blank lines from 0
};

/// Reads a file, a pipe or standard input line by line. A line has at most `kMaxLineBytes` bytes.
///
/// Threads: one call at a time.
class LineReader {
public:
  static constexpr std::size_t kMaxLineBytes = std::size_t{64} << 20U;

  /// Opens `path`. "-" is standard input, which errors call "stdin".
  /// Errors: `kNotFound`, `kInvalidArgument` (a directory), `kUnavailable`.
  [[nodiscard]] static Result<std::unique_ptr<LineReader>> open(const std::string& path);

  /// Makes a reader of `text`, which errors call `name`.
  [[nodiscard]] static std::unique_ptr<LineReader> of_text(std::string name, std::string text);

  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;
  ~LineReader();

  /// Returns whether `next` would return without waiting for input.
  [[nodiscard]] bool ready();

  /// Returns the next non-blank line, or nothing at the end of the input.
  /// Errors: `kInvalidArgument` naming a line that is too long; `kUnavailable`.
  [[nodiscard]] Result<std::optional<InputLine>> next();

private:
  LineReader(std::string name, int descriptor) : name_(std::move(name)), descriptor_(descriptor) {}

  [[nodiscard]] std::string location() const;
  [[nodiscard]] bool has_line();
  [[nodiscard]] Status fill();

  std::string name_;
  int descriptor_ = -1;  // -1: reads a text
  std::string buffer_;
  std::size_t begin_ = 0;    // of the next line in `buffer_`
  std::size_t scanned_ = 0;  // no line ends between `begin_` and this
  bool ended_ = false;
  std::uint64_t number_ = 0;  // lines read, including blank ones
  std::uint64_t index_ = 0;   // lines returned
};

/// Parses `line`, which must be a JSON object. Errors, naming the line: those of `parse_json`;
/// `kInvalidArgument` if it is not an object.
[[nodiscard]] Result<Json> parse_line(const InputLine& line);

/// Returns the member `ids` of an object, or nothing if it has none.
/// Errors: `kInvalidArgument`, beginning with `location`, if it is not an array of integers from 0
/// to 2^31 - 1.
[[nodiscard]] Result<std::optional<std::vector<std::int32_t>>> read_ids(
    const Json& object, const std::string& location);

/// Checks that all `ids` are in a vocabulary of `vocab_size` tokens.
/// Errors: `kInvalidArgument`, beginning with `location`, that names the first id outside of it.
[[nodiscard]] Status check_ids(const std::vector<std::int32_t>& ids, std::int64_t vocab_size,
                               const std::string& location);

/// Returns `ids` as JSON.
[[nodiscard]] Json ids_json(const std::vector<std::int32_t>& ids);

/// Writes `value` as one line and flushes it, since a program may be waiting for it.
/// Errors: `kUnavailable` if the line cannot be written, e.g. because the reader has closed the
/// pipe or the disk is full.
[[nodiscard]] Status write_line(std::ostream& out, const Json& value);

/// Calls `process` for each line of the input `path` and writes the results to `out`. Stops at the
/// first line that fails and writes nothing for it. The results of the lines before it have been
/// written.
/// Errors: those of `LineReader` and of `process`, whose messages must name the line.
[[nodiscard]] Status process_lines(const std::string& path, std::ostream& out,
                                   const std::function<Result<Json>(const InputLine&)>& process);

}  // namespace tidemill::launcher
