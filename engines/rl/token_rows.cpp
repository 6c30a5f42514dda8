// SPDX-License-Identifier: Apache-2.0
#include "engines/rl/token_rows.hpp"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "engines/rl/refusal.hpp"

namespace tidemill::engines {
namespace {

void append_id(std::ostringstream& text, std::span<const SampleId> ids, std::size_t row) {
  if (row < ids.size()) {
    text << ", sample " << ids[row].value;
  }
}

Status bad_size(std::string_view name, std::size_t got, std::size_t want) {
  std::ostringstream text;
  text << name << " has " << got << " values, expected " << want;
  return refuse(kBadShape, text.str());
}

std::string token_location(const TokenRows& rows, std::size_t row, std::size_t position) {
  std::ostringstream text;
  text << "[" << position << "] (row " << row << ", token " << position - rows.begin(row);
  append_id(text, rows.ids, row);
  text << ")";
  return text.str();
}

}  // namespace

std::int64_t count_valid(const TokenRows& rows, std::span<const std::uint8_t> mask,
                         std::size_t row) {
  std::int64_t count = 0;
  for (std::size_t t = rows.begin(row); t < rows.end(row); ++t) {
    count += mask[t];
  }
  return count;
}

Status check_token_rows(const TokenRows& rows) {
  if (rows.offsets.empty() || rows.offsets.front() != 0 ||
      rows.offsets.back() != rows.mask.size()) {
    return refuse(kBadShape, "offsets must run from 0 to the size of the mask");
  }
  for (std::size_t row = 0; row < rows.num_rows(); ++row) {
    if (rows.end(row) < rows.begin(row)) {
      return refuse(kBadShape, "offsets[" + std::to_string(row + 1) + "] decreases");
    }
  }
  if (!rows.ids.empty() && rows.ids.size() != rows.num_rows()) {
    return bad_size("ids", rows.ids.size(), rows.num_rows());
  }
  for (std::size_t row = 0; row < rows.num_rows(); ++row) {
    for (std::size_t t = rows.begin(row); t < rows.end(row); ++t) {
      if (rows.mask[t] > 1) {
        return refuse(kBadMask, "mask" + token_location(rows, row, t) + " is neither 0 nor 1");
      }
    }
  }
  return {};
}

template <class Real>
Status check_token_column(const TokenRows& rows, std::string_view name,
                          std::span<const Real> column) {
  if (column.size() != rows.num_positions()) {
    return bad_size(name, column.size(), rows.num_positions());
  }
  for (std::size_t row = 0; row < rows.num_rows(); ++row) {
    for (std::size_t t = rows.begin(row); t < rows.end(row); ++t) {
      if (rows.mask[t] != 0 && !std::isfinite(column[t])) {
        std::ostringstream text;
        text << name << token_location(rows, row, t) << " is " << column[t];
        return refuse(kNonFinite, text.str());
      }
    }
  }
  return {};
}

template <class Real>
Status check_row_column(const TokenRows& rows, std::string_view name,
                        std::span<const Real> column) {
  return check_values(name, column, rows.num_rows(), rows.ids);
}

template <class Real>
Status check_values(std::string_view name, std::span<const Real> column, std::size_t size,
                    std::span<const SampleId> ids) {
  if (column.size() != size) {
    return bad_size(name, column.size(), size);
  }
  if (!ids.empty() && ids.size() != size) {
    return bad_size("ids", ids.size(), size);
  }
  for (std::size_t i = 0; i < size; ++i) {
    if (!std::isfinite(column[i])) {
      std::ostringstream text;
      text << name << "[" << i << "]";
      if (!ids.empty()) {
        text << " (sample " << ids[i].value << ")";
      }
      text << " is " << column[i];
      return refuse(kNonFinite, text.str());
    }
  }
  return {};
}

Status check_output_size(std::string_view name, std::size_t got, std::size_t want) {
  return got == want ? Status() : bad_size(name, got, want);
}

template <class Real>
Status check_result(std::string_view name, std::span<const Real> column) {
  for (std::size_t i = 0; i < column.size(); ++i) {
    if (!std::isfinite(column[i])) {
      std::ostringstream text;
      text << name << "[" << i << "] is " << column[i];
      return refuse(kNonFiniteResult, text.str());
    }
  }
  return {};
}

template <class Real>
Status check_token_result(const TokenRows& rows, std::string_view name,
                          std::span<const Real> column) {
  for (std::size_t row = 0; row < rows.num_rows(); ++row) {
    for (std::size_t t = rows.begin(row); t < std::min(rows.end(row), column.size()); ++t) {
      if (!std::isfinite(column[t])) {
        std::ostringstream text;
        text << name << token_location(rows, row, t) << " is " << column[t];
        return refuse(kNonFiniteResult, text.str());
      }
    }
  }
  return {};
}

template <class Real>
void broadcast_rows(const TokenRows& rows, std::span<const Real> per_row,
                    std::span<Real> per_token) {
  for (std::size_t row = 0; row < rows.num_rows(); ++row) {
    for (std::size_t t = rows.begin(row); t < rows.end(row); ++t) {
      per_token[t] = rows.mask[t] != 0 ? per_row[row] : Real{0};
    }
  }
}

#define TIDEMILL_INSTANTIATE(Real)                                                               \
  template Status check_token_column(const TokenRows&, std::string_view, std::span<const Real>); \
  template Status check_row_column(const TokenRows&, std::string_view, std::span<const Real>);   \
  template Status check_values(std::string_view, std::span<const Real>, std::size_t,             \
                               std::span<const SampleId>);                                       \
  template Status check_result(std::string_view, std::span<const Real>);                         \
  template Status check_token_result(const TokenRows&, std::string_view, std::span<const Real>); \
  template void broadcast_rows(const TokenRows&, std::span<const Real>, std::span<Real>);
TIDEMILL_INSTANTIATE(float)
TIDEMILL_INSTANTIATE(double)
#undef TIDEMILL_INSTANTIATE

}  // namespace tidemill::engines
