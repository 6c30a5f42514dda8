// SPDX-License-Identifier: Apache-2.0
// Runs the cases of tests/golden/rl. Reads a family file, calls each operation in double and float
// on padded and on ragged rows, and compares the results. File format and rules:
// tests/golden/rl/README.md.
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engines/rl/refusal.hpp"
#include "engines/rl/token_rows.hpp"

namespace tidemill::engines::golden {

using Json = nlohmann::json;

/// How [B][T] inputs are laid out as ragged rows.
enum class Layout : std::uint8_t {
  kPadded,   // every row has all T positions
  kTrimmed,  // a row ends at its last valid position
};

/// The result of an operation: numbers by name, or a refusal.
struct Outcome {
  Status status;
  std::map<std::string, std::vector<double>> values;
};

/// The inputs of a case as columns of `Real`.
template <class Real>
class CaseInputs {
public:
  CaseInputs(const Json& in, Layout layout) : in_(in), layout_(layout) { read_mask(); }

  [[nodiscard]] bool has(const std::string& name) const { return in_.contains(name); }
  [[nodiscard]] bool has_mask() const { return in_.contains("mask"); }
  /// Returns whether `name` has the shape [B], one value per row.
  [[nodiscard]] bool is_per_row(const std::string& name) const {
    return in_.at(name).empty() || !in_.at(name)[0].is_array();
  }
  [[nodiscard]] TokenRows rows() const { return {offsets_, mask_, {}}; }
  [[nodiscard]] std::size_t width() const { return width_; }
  [[nodiscard]] Layout layout() const { return layout_; }

  /// Returns an input of shape [N] or [B], or an empty span if the case does not have it.
  [[nodiscard]] std::span<const Real> values(const std::string& name) {
    auto [column, is_new] = columns_.try_emplace(name);
    if (is_new && has(name)) {
      for (const Json& value : in_.at(name)) {
        column->second.push_back(number(value));
      }
    }
    return column->second;
  }

  /// Returns an input of shape [B][T] or [B][T][V], laid out as ragged rows, or an empty span if
  /// the case does not have it. An input of shape [B] is broadcast along its rows.
  [[nodiscard]] std::span<const Real> tokens(const std::string& name) {
    auto [column, is_new] = columns_.try_emplace(name);
    if (is_new && has(name)) {
      if (is_per_row(name)) {
        std::vector<Real> per_row;
        for (const Json& value : in_.at(name)) {
          per_row.push_back(number(value));
        }
        column->second.resize(mask_.size());
        broadcast_rows<Real>(rows(), per_row, column->second);
      } else {
        for (std::size_t row = 0; row + 1 < offsets_.size(); ++row) {
          for (std::size_t t = 0; t < offsets_[row + 1] - offsets_[row]; ++t) {
            append(in_.at(name)[row][t], column->second);
          }
        }
      }
    }
    return column->second;
  }

  /// Returns an input of integers of shape [B], or of shape [B][T] laid out as ragged rows.
  [[nodiscard]] std::vector<std::int64_t> integers(const std::string& name) const {
    std::vector<std::int64_t> column;
    if (!has(name)) {
      return column;
    }
    for (std::size_t row = 0; row < in_.at(name).size(); ++row) {
      const Json& value = in_.at(name)[row];
      if (!value.is_array()) {
        column.push_back(value.get<std::int64_t>());
        continue;
      }
      for (std::size_t t = 0; t < offsets_[row + 1] - offsets_[row]; ++t) {
        column.push_back(value[t].template get<std::int64_t>());
      }
    }
    return column;
  }

  [[nodiscard]] std::vector<GroupId> groups() const {
    std::vector<GroupId> ids;
    for (const Json& value : in_.at("group")) {
      ids.push_back(GroupId{value.get<std::uint64_t>()});
    }
    return ids;
  }

  /// Converts a result with `inner` values per position from ragged rows back to [B][T][inner].
  [[nodiscard]] std::vector<double> padded(std::span<const Real> column,
                                           std::size_t inner = 1) const {
    const std::size_t stride = width_ * inner;
    std::vector<double> result((offsets_.size() - 1) * stride, 0.0);
    for (std::size_t row = 0; row + 1 < offsets_.size(); ++row) {
      for (std::size_t i = offsets_[row] * inner; i < offsets_[row + 1] * inner; ++i) {
        result[row * stride + (i - offsets_[row] * inner)] = static_cast<double>(column[i]);
      }
    }
    return result;
  }

private:
  static Real number(const Json& value) {
    if (value.is_string()) {
      return static_cast<Real>(std::stod(value.get<std::string>()));  // "nan", "inf", "-inf"
    }
    return static_cast<Real>(value.get<double>());
  }

  static void append(const Json& value, std::vector<Real>& column) {
    if (!value.is_array()) {
      column.push_back(number(value));
      return;
    }
    for (const Json& inner : value) {
      column.push_back(number(inner));
    }
  }

  void read_mask() {
    offsets_.push_back(0);
    if (!has_mask()) {
      return;
    }
    for (const Json& row : in_.at("mask")) {
      width_ = std::max(width_, row.size());
      std::size_t length = layout_ == Layout::kPadded ? row.size() : 0;
      for (std::size_t t = 0; t < row.size(); ++t) {
        length = row[t] != 0 ? std::max(length, t + 1) : length;
      }
      for (std::size_t t = 0; t < length; ++t) {
        // Masks are bytes: a number other than 0 and 1 becomes 2, a byte that is refused.
        mask_.push_back(row[t] == 0 ? 0 : (row[t] == 1 ? 1 : 2));
      }
      offsets_.push_back(mask_.size());
    }
  }

  const Json& in_;
  Layout layout_;
  std::size_t width_ = 0;
  std::vector<std::size_t> offsets_;
  std::vector<std::uint8_t> mask_;
  std::map<std::string, std::vector<Real>> columns_;
};

/// The options of a case. A key that is never read is refused as `unknown_option`.
class CaseOptions {
public:
  explicit CaseOptions(const Json& options) : options_(options) {}

  void read(const std::string& name, double& value);
  void read(const std::string& name, int& value);
  void read(const std::string& name, std::int64_t& value);
  void read(const std::string& name, bool& value);
  void read(const std::string& name, std::optional<double>& value);
  void read(const std::string& name, std::optional<std::int64_t>& value);

  /// Reads one of the names in `choices`. Any other value is refused as `bad_option`.
  template <class Enum>
  void read(const std::string& name, Enum& value,
            std::initializer_list<std::pair<std::string_view, Enum>> choices) {
    if (const Json* json = take(name)) {
      for (const auto& [text, choice] : choices) {
        if (*json == text) {
          value = choice;
          return;
        }
      }
      fail(kBadOption, name);
    }
  }

  /// Returns the JSON value of `name` and marks it as read, or returns null if it is absent.
  const Json* take(const std::string& name);

  /// Reads the options nested in `json` with `reader(CaseOptions&)`.
  template <class Reader>
  void nested(const Json& json, const Reader& reader) {
    CaseOptions inner(json);
    reader(inner);
    keep_first(inner.finish());
  }

  /// Returns the first refusal: a bad value or a key that was never read.
  [[nodiscard]] Status finish();

private:
  void fail(std::string_view code, const std::string& name);
  void keep_first(Status status);

  const Json& options_;
  std::set<std::string> read_;
  Status status_;
};

/// Counts over a whole family file.
struct Tally {
  int cases = 0;
  int refusals = 0;
  int runs_f64 = 0;
  int runs_f32 = 0;
  int f64_only = 0;
  int numbers = 0;
  int exact_fields = 0;
};

/// Reads a family file of tests/golden/rl.
Json read_family(const std::string& family);

/// Compares `got` with the expected values of `test_case`. `tolerance` is relative to 1 + |want|.
void compare(const Json& test_case, const Outcome& got, double tolerance, bool as_float,
             Tally& tally);

/// Prints the tally and asserts the number of cases.
void report(const std::string& family, const Tally& tally, int expected_cases);

/// Runs every case of a family through `runner(op, inputs, options)`, which must accept inputs of
/// both float and double. Returns the results in double on padded rows, by case id.
template <class Runner>
std::map<std::string, Outcome> check_family(const std::string& family, int expected_cases,
                                            const Runner& runner) {
  const Json file = read_family(family);
  std::map<std::string, Outcome> outcomes;
  Tally tally;
  const Json none = Json::object();
  for (const Json& test_case : file.at("cases")) {
    SCOPED_TRACE(test_case.at("id").get<std::string>());
    ++tally.cases;
    tally.refusals += test_case.contains("error") ? 1 : 0;
    const std::string op = test_case.at("op");
    const Json& options = test_case.contains("opt") ? test_case.at("opt") : none;
    const auto run = [&]<class Real>(Layout layout, Real /*tag*/) {
      SCOPED_TRACE(layout == Layout::kPadded ? "padded" : "trimmed");
      CaseInputs<Real> inputs(test_case.at("in"), layout);
      CaseOptions case_options(options);
      const Outcome outcome = runner(op, inputs, case_options);
      constexpr bool kAsFloat = std::is_same_v<Real, float>;
      SCOPED_TRACE(kAsFloat ? "float32" : "float64");
      compare(test_case, outcome, file.at("tolerance").at(kAsFloat ? "f32" : "f64"), kAsFloat,
              tally);
      ++(kAsFloat ? tally.runs_f32 : tally.runs_f64);
      return outcome;
    };
    const bool also_float = test_case.value("f32", true);
    tally.f64_only += also_float ? 0 : 1;
    outcomes[test_case.at("id")] = run(Layout::kPadded, double{});
    if (also_float) {
      run(Layout::kPadded, float{});
    }
    if (test_case.at("in").contains("mask")) {
      run(Layout::kTrimmed, double{});
      if (also_float) {
        run(Layout::kTrimmed, float{});
      }
    }
  }
  report(family, tally, expected_cases);
  return outcomes;
}

}  // namespace tidemill::engines::golden
