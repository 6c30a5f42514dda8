// SPDX-License-Identifier: Apache-2.0
// The shape of a ragged batch of token columns, and the checks that every function makes on it.
//
// A column is one flat span of N values. `offsets` holds the position at which each of the B rows
// begins, and `mask` marks the positions that count. Rows need no padding, but may have it: a
// masked position is never read, whatever its value, and outputs there are exactly 0. Masks may
// have holes (tool output between turns), and a row may be masked completely.
//
// Columns are float or double. The arithmetic in this folder is double for both, so a float column
// is rounded only when it is written.
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
/// Shapes: `offsets` (B + 1), from 0 to N, never decreasing; `mask` (N); `ids` (B) or empty.
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

/// Counts the positions of `row` whose `mask` is set. `mask` (N) is the mask of the batch or a
/// subset of it, such as what rejection left of it.
[[nodiscard]] std::int64_t count_valid(const TokenRows& rows, std::span<const std::uint8_t> mask,
                                       std::size_t row);

/// Checks `offsets`, `mask` and `ids`.
/// Errors: `bad_shape`, `bad_mask` naming the position.
[[nodiscard]] Status check_token_rows(const TokenRows& rows);

/// Checks that `column` has N values, which are finite where the mask is set.
/// Errors: `bad_shape`, `non_finite` naming the column, row and position.
template <class Real>
[[nodiscard]] Status check_token_column(const TokenRows& rows, std::string_view name,
                                        std::span<const Real> column);

/// Checks that `column` has B finite values.
/// Errors: `bad_shape`, `non_finite` naming the column and row.
template <class Real>
[[nodiscard]] Status check_row_column(const TokenRows& rows, std::string_view name,
                                      std::span<const Real> column);

/// Checks that `column` has `size` finite values. `ids` (`size`) or empty: names the values in
/// refusals.
/// Errors: `bad_shape`, `non_finite` naming the column, index and id.
template <class Real>
[[nodiscard]] Status check_values(std::string_view name, std::span<const Real> column,
                                  std::size_t size, std::span<const SampleId> ids = {});

/// Checks that an output has `want` values; `got` is its size.
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
