// SPDX-License-Identifier: Apache-2.0
// The outcome of an operation that can fail for reasons a caller can act on.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace tidemill {

/// The kinds of failure that callers distinguish. Add a code only if a caller reacts to it.
enum class Errc : std::uint8_t {
  kOk = 0,
  kInvalidArgument = 1,
  kNotFound = 2,
  kTimeout = 3,
  kUnavailable = 4,
  kResourceExhausted = 5,
  kStaleVersion = 7,
  kCorruptData = 9,
  kUnimplemented = 10,
  kInternal = 11,
};

/// Returns the stable lower-case name of `code`, e.g. "stale_version".
[[nodiscard]] std::string_view errc_name(Errc code) noexcept;

/// Outcome of an operation that returns no value.
class [[nodiscard]] Status {
public:
  /// Constructs success.
  Status() = default;
  /// Constructs a failure. `code` must not be `kOk`.
  Status(Errc code, std::string message) : code_(code), message_(std::move(message)) {}

  [[nodiscard]] bool ok() const noexcept { return code_ == Errc::kOk; }
  [[nodiscard]] Errc code() const noexcept { return code_; }
  /// Returns one line for the user, which names the location. Empty if `ok()`.
  [[nodiscard]] const std::string& message() const noexcept { return message_; }
  /// Returns "name: message", or "ok".
  [[nodiscard]] std::string to_string() const;

  /// Returns this failure with `context` and ": " before its message. Success is unchanged.
  [[nodiscard]] Status with_context(std::string_view context) const;

private:
  Errc code_ = Errc::kOk;
  std::string message_;
};

/// Returns a `kInvalidArgument` failure.
[[nodiscard]] inline Status invalid_argument(std::string message) {
  return {Errc::kInvalidArgument, std::move(message)};
}

/// Returns a `kCorruptData` failure: the bytes of a file or message contradict their format.
[[nodiscard]] inline Status corrupt_data(std::string message) {
  return {Errc::kCorruptData, std::move(message)};
}

}  // namespace tidemill

// NOLINTBEGIN(bugprone-macro-parentheses): `expression` is a whole expression, `lhs` a declaration.
#define TIDEMILL_CONCAT_INNER(a, b) a##b
#define TIDEMILL_CONCAT(a, b) TIDEMILL_CONCAT_INNER(a, b)

/// Returns the failure of `expression`, a `Status`, from the enclosing function.
#define TIDEMILL_RETURN_IF_ERROR(expression)             \
  do {                                                   \
    ::tidemill::Status tidemill_status_ = (expression);  \
    if (!tidemill_status_.ok()) return tidemill_status_; \
  } while (false)

/// Declares or assigns `lhs` from `expression`, a `Result<T>`, or returns its failure.
#define TIDEMILL_ASSIGN_OR_RETURN(lhs, expression) \
  TIDEMILL_ASSIGN_OR_RETURN_INNER(TIDEMILL_CONCAT(tidemill_result_, __LINE__), lhs, expression)
#define TIDEMILL_ASSIGN_OR_RETURN_INNER(result, lhs, expression) \
  auto result = (expression);                                    \
  if (!result.ok()) return result.status();                      \
  lhs = std::move(result).value()
// NOLINTEND(bugprone-macro-parentheses)
