// SPDX-License-Identifier: Apache-2.0
// JSON lines in, JSON lines out: how programs drive the commands that work on a model.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "base/result.hpp"

namespace tidemill::launcher {

/// One line of an input that is not blank.
struct InputLine {
  std::string text;
  std::string place;        // as errors print it: "prompts.jsonl:17"
  std::uint64_t index = 0;  // among the lines that are not blank, from 0
};

/// Reads a file, a pipe or standard input line by line, each within `kMaxLineBytes`.
///
/// Threads: one call at a time.
class LineReader {
public:
  static constexpr std::size_t kMaxLineBytes = std::size_t{64} << 20U;

  /// Opens `path`; "-" is standard input, called "stdin" in errors.
  /// Errors: `kNotFound`, `kInvalidArgument` (a directory), `kUnavailable`.
  [[nodiscard]] static Result<std::unique_ptr<LineReader>> open(const std::string& path);

  /// Reads `text` in place of a file; errors call it `name`.
  [[nodiscard]] static std::unique_ptr<LineReader> of_text(std::string name, std::string text);

  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;
  ~LineReader();

  /// Returns whether `next` would answer without waiting for whoever writes the input.
  [[nodiscard]] bool ready();

  /// Returns the next line that is not blank; nothing at the end.
  /// Errors: `kInvalidArgument` naming the line that is too long; `kUnavailable`.
  [[nodiscard]] Result<std::optional<InputLine>> next();

private:
  LineReader(std::string name, int descriptor) : name_(std::move(name)), descriptor_(descriptor) {}

  [[nodiscard]] std::string place() const;
  [[nodiscard]] bool has_line();
  [[nodiscard]] Status fill();

  std::string name_;
  int descriptor_ = -1;  // of a text: none
  std::string buffer_;
  std::size_t begin_ = 0;    // of the next line in `buffer_`
  std::size_t scanned_ = 0;  // no line ends before this
  bool ended_ = false;
  std::uint64_t number_ = 0;  // lines taken, blank ones too
  std::uint64_t index_ = 0;   // lines given out
};

/// Parses `line`, one JSON object. Errors: as `parse_json` and `kInvalidArgument` for anything but
/// an object, naming the line.
[[nodiscard]] Result<Json> parse_line(const InputLine& line);

/// Returns the member `ids` of an object; absent if it has none.
/// Errors: `kInvalidArgument` beginning with `place`: not an array of integers from 0 to 2^31 - 1.
[[nodiscard]] Result<std::optional<std::vector<std::int32_t>>> read_ids(const Json& object,
                                                                        const std::string& place);

/// Checks that a vocabulary of `vocab_size` tokens has all `ids`.
/// Errors: `kInvalidArgument` beginning with `place` and naming the first that it lacks.
[[nodiscard]] Status check_ids(const std::vector<std::int32_t>& ids, std::int64_t vocab_size,
                               const std::string& place);

/// Returns `ids` as JSON.
[[nodiscard]] Json ids_json(const std::vector<std::int32_t>& ids);

/// Writes `answer` as one line, at once, for a program may be waiting for it.
/// Errors: `kUnavailable` if nobody reads, or the disk is full.
[[nodiscard]] Status write_line(std::ostream& out, const Json& answer);

/// Answers line after line of the input `path`. At the first line that has no answer it stops: what
/// was answered before stands, and nothing is written for that line.
/// Errors: of `LineReader` and `answer`, whose messages must name the line.
[[nodiscard]] Status answer_lines(const std::string& path, std::ostream& out,
                                  const std::function<Result<Json>(const InputLine&)>& answer);

}  // namespace tidemill::launcher
