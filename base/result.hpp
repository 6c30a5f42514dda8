// SPDX-License-Identifier: Apache-2.0
// The outcome of an operation that returns a value or fails.
#pragma once

#include <optional>
#include <utility>

#include "base/check.hpp"
#include "base/status.hpp"

namespace tidemill {

/// A value of type `T`, or the `Status` that says why it is missing.
template <class T>
class [[nodiscard]] Result {
public:
  // Both conversions are implicit so that a function can return either directly.
  Result(T value) : value_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    TIDEMILL_CHECK(!status_.ok()) << "a Result needs a value or a failure";
  }

  [[nodiscard]] bool ok() const noexcept { return value_.has_value(); }
  [[nodiscard]] const Status& status() const noexcept { return status_; }

  /// Returns the value. Requires `ok()`.
  [[nodiscard]] T& value() & {
    TIDEMILL_CHECK(ok()) << status_.to_string();
    return *value_;
  }
  [[nodiscard]] const T& value() const& {
    TIDEMILL_CHECK(ok()) << status_.to_string();
    return *value_;
  }
  // By value: a reference into the temporary would dangle in `for (auto& x : list().value())`.
  [[nodiscard]] T value() && {
    TIDEMILL_CHECK(ok()) << status_.to_string();
    return std::move(*value_);
  }

private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace tidemill
