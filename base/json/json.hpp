// SPDX-License-Identifier: Apache-2.0
// JSON of untrusted files: parsed within limits, members in file order, no duplicate names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.hpp"

namespace tidemill {

/// A JSON value.
///
/// A number without a fraction or an exponent is an integer, or a large integer if it does not fit
/// in a signed 64-bit integer. All other numbers are reals. Objects keep the order of the file.
class Json {
public:
  struct Member;
  using Array = std::vector<Json>;
  using Object = std::vector<Member>;

  /// Makes null.
  Json() noexcept;
  // Conversions are implicit so that documents can be written as nested braces.
  Json(bool value);          // NOLINT(google-explicit-constructor)
  Json(int value);           // NOLINT(google-explicit-constructor)
  Json(std::int64_t value);  // NOLINT(google-explicit-constructor)
  Json(double value);        // NOLINT(google-explicit-constructor)
  Json(std::string value);   // NOLINT(google-explicit-constructor)
  Json(const char* value);   // NOLINT(google-explicit-constructor)
  Json(Array value);         // NOLINT(google-explicit-constructor)
  Json(Object value);        // NOLINT(google-explicit-constructor)

  [[nodiscard]] bool is_null() const noexcept {
    return std::holds_alternative<std::monostate>(value_);
  }
  /// Each returns the value if it is of that kind, or null.
  [[nodiscard]] const bool* if_bool() const noexcept { return std::get_if<bool>(&value_); }
  [[nodiscard]] const std::int64_t* if_integer() const noexcept {
    return std::get_if<std::int64_t>(&value_);
  }
  [[nodiscard]] const std::string* if_string() const noexcept {
    return std::get_if<std::string>(&value_);
  }
  [[nodiscard]] const Array* if_array() const noexcept { return std::get_if<Array>(&value_); }
  [[nodiscard]] const Object* if_object() const noexcept { return std::get_if<Object>(&value_); }
  /// Returns the digits of a large integer, with its sign, or null.
  [[nodiscard]] const std::string* if_large_integer() const noexcept {
    const auto* large = std::get_if<LargeInteger>(&value_);
    return large == nullptr ? nullptr : &large->digits;
  }
  /// Returns the value of an integer or a real, or the real closest to a large integer.
  [[nodiscard]] std::optional<double> number() const noexcept;

  /// Returns the member `name` of an object, or null if it has none or this is not an object.
  [[nodiscard]] const Json* find(std::string_view name) const noexcept;

  /// Returns the document as text, indented by two spaces, with a final newline. Bytes that are not
  /// UTF-8 become U+FFFD; reals that are not finite become null.
  [[nodiscard]] std::string to_text() const;
  /// Returns the document as one line with a final newline; otherwise as `to_text`.
  [[nodiscard]] std::string to_line() const;

  /// Makes a large integer from its digits, which may follow a minus sign.
  [[nodiscard]] static Json large_integer(std::string digits);

private:
  struct LargeInteger {
    std::string digits;
  };
  std::variant<std::monostate, bool, std::int64_t, double, std::string, Array, Object, LargeInteger>
      value_;
};

/// One member of an object.
struct Json::Member {
  std::string name;
  Json value;
};

/// The limits of a document. The defaults hold for every file and line that the program reads. They
/// leave room for the largest tokenizer.json and for rows of a million tokens. A caller that knows
/// its format may set smaller limits, but no larger ones.
struct JsonLimits {
  std::size_t max_bytes = std::size_t{128} << 20U;
  std::size_t max_depth = 64;          // arrays and objects inside each other
  std::size_t max_values = 4'000'000;  // including arrays, objects and their elements
};

/// Parses `text`, one JSON document. All JSON is read with this function.
/// Errors: `kCorruptData` for broken JSON, naming the byte, and for a name that occurs twice in one
/// object; `kInvalidArgument` if a limit is exceeded.
[[nodiscard]] Result<Json> parse_json(std::string_view text, const JsonLimits& limits = {});

}  // namespace tidemill
