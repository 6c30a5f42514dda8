// SPDX-License-Identifier: Apache-2.0
// Private to storage/dataset. Cuts a JSON array into its elements.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/status.hpp"

namespace tidemill::storage {

/// The text of a row in its file.
struct RowText {
  std::string_view text;         // empty if it is longer than allowed
  std::uint64_t offset = 0;      // of its first byte in the file
  std::uint64_t size_bytes = 0;  // also if it is longer than allowed
  std::uint64_t line = 1;        // of its first byte, from 1
};

/// Receives a row. An error ends the reading of the file.
using OnRowText = std::function<Status(const RowText& row)>;

/// Cuts a file that holds one JSON array into the array's elements. Takes the file in blocks of any
/// size and holds one element at a time.
///
/// Checks only what separates the elements. An element begins and ends with a byte that is not
/// white space, and may be anything: `OnRowText` parses it.
/// Threads: one call at a time.
class ArrayRows {
public:
  /// An element of more than `max_bytes` is passed on without its text.
  ArrayRows(std::uint64_t max_bytes, OnRowText on_row)
      : max_bytes_(max_bytes), on_row_(std::move(on_row)) {}

  /// Takes the next bytes of the file.
  /// Errors: `kInvalidArgument` for a byte that an array cannot have at that place, on the line
  /// that `line` returns; those of `OnRowText`.
  [[nodiscard]] Status take(std::string_view bytes);
  /// Checks that the array has ended. Errors: as `take`.
  [[nodiscard]] Status finish();

  /// Returns the line of an error of `take` or `finish`: that of the element that has not ended, or
  /// else that of the byte that was taken last.
  [[nodiscard]] std::uint64_t line() const noexcept {
    return state_ == State::kElement ? element_.line : line_;
  }

private:
  enum class State : std::uint8_t {
    kStart,    // before the array
    kFirst,    // after its "[": an element or "]" follows
    kElement,  // in an element
    kNext,     // after a comma: an element follows
    kEnd,      // after the array
  };

  [[nodiscard]] Status take_outside(char byte);
  [[nodiscard]] Status take_inside(char byte);
  [[nodiscard]] Status end_element();
  void keep(char byte);

  std::uint64_t max_bytes_;
  OnRowText on_row_;
  State state_ = State::kStart;
  std::uint64_t offset_ = 0;  // of the next byte
  std::uint64_t line_ = 1;
  std::uint64_t depth_ = 0;  // of arrays and objects inside the element
  bool in_string_ = false;
  bool escaped_ = false;  // the next byte of a string follows a backslash
  RowText element_;       // `size_bytes` up to its last byte that is not white space
  std::string text_;      // of the element and the white space after it, up to `max_bytes_`
};

}  // namespace tidemill::storage
