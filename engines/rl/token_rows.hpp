// SPDX-License-Identifier: Apache-2.0
// The shape of a ragged batch of token columns, and the checks every function makes on it.
//
// A column is one flat span of N values; `offsets` says where each of the B rows begins, `mask`
// which positions count. No sequence is padded, but padding is allowed: a masked position is never
// read, whatever it holds, and outputs there are exactly 0. Masks may have holes (tool output
// between turns) and rows may be masked altogether.
//
// Columns are float or double; arithmetic inside this folder is double for both, so a float column
// costs one rounding when it is read and one when it is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/ids.hpp"
#include "base/status.hpp"

namespace tidemill::engines {

/// Which positions of a flat column belong to which row, and which of them count.
///
/// Shapes: `offsets` (B + 1), from 0 to N, never falling; `mask` (N); `ids` (B) or empty.
/// Borrows: all spans.
struct TokenRows {
  std::span<const std::size_t> offsets;
  std::span<const std::uint8_t> mask;
  /// Names the rows in refusals.
  std::span<const SampleId> ids;

  [[nodiscard]] std::size_t num_rows() const noexcept {
    return offsets.empty() ? 0 : offsets.size() - 1;
  }
  [[nodiscard]] std::size_t num_positions() const noexcept { return mask.size(); }
  [[nodiscard]] std::size_t begin(std::size_t row) const noexcept { return offsets[row]; }
  [[nodiscard]] std::size_t end(std::size_t row) const noexcept { return offsets[row + 1]; }
};

/// Counts the positions of `row` whose `mask` is set; `mask` (N) is the batch's own or a smaller
/// one, such as what rejection left of it.
[[nodiscard]] std::int64_t count_valid(const TokenRows& rows, std::span<const std::uint8_t> mask,
                                       std::size_t row);

/// Checks `offsets`, `mask` and `ids`.
/// Errors: `bad_shape`, `bad_mask` naming the position.
[[nodiscard]] Status check_token_rows(const TokenRows& rows);

/// Checks that `column` has N values, finite where the mask is set.
/// Errors: `bad_shape`, `non_finite` naming the column, row and position.
template <class Real>
[[nodiscard]] Status check_token_column(const TokenRows& rows, std::string_view name,
                                        std::span<const Real> column);

/// Checks that `column` has B finite values.
/// Errors: `bad_shape`, `non_finite` naming the column and row.
template <class Real>
[[nodiscard]] Status check_row_column(const TokenRows& rows, std::string_view name,
                                      std::span<const Real> column);

/// Checks that `column` has as many finite values as there are `ids`, or `size` values when
/// `ids` is empty.
/// Errors: `bad_shape`, `non_finite` naming the column, index and id.
template <class Real>
[[nodiscard]] Status check_values(std::string_view name, std::span<const Real> column,
                                  std::size_t size, std::span<const SampleId> ids = {});

/// Checks that an output has `size` places.
/// Errors: `bad_shape`.
[[nodiscard]] Status check_output_size(std::string_view name, std::size_t got, std::size_t want);

/// Checks that a computed column is finite.
/// Errors: `non_finite_result` naming the column and index.
template <class Real>
[[nodiscard]] Status check_result(std::string_view name, std::span<const Real> column);

/// Checks that a computed token column is finite.
/// Errors: `non_finite_result` naming the column, row and position.
template <class Real>
[[nodiscard]] Status check_token_result(const TokenRows& rows, std::string_view name,
                                        std::span<const Real> column);

/// Copies one value per row to every valid position of the row; masked positions become 0.
/// Shapes: `per_row` (B), `per_token` (N).
template <class Real>
void broadcast_rows(const TokenRows& rows, std::span<const Real> per_row,
                    std::span<Real> per_token);

}  // namespace tidemill::engines
