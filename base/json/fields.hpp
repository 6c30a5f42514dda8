// SPDX-License-Identifier: Apache-2.0
// Typed reading of a JSON object's members, with errors that name file and field.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json/json.hpp"

namespace tidemill {

/// The integers a field may hold.
struct IntegerRange {
  std::int64_t min = 0;
  std::int64_t max = std::numeric_limits<std::int64_t>::max();
};

/// The finite reals a field may hold.
struct RealRange {
  double min = std::numeric_limits<double>::lowest();
  double max = std::numeric_limits<double>::max();
};

/// Reads members of one object. The first refusal is kept: read every field, then check `status`.
///
/// A member that is null counts as absent. A refused field reads as absent, and a refused required
/// field as 0.
/// Errors, all `kInvalidArgument`: "LOCATION: FIELD: what it must be".
/// Threads: one call at a time. Borrows the object until destroyed.
class JsonFields {
public:
  /// Reads `object`, which was found at `location`: a file ("config.json") or, if `prefix` is
  /// given, a field of that file (prefix "rope_scaling."). Anything but an object is refused. An
  /// empty location is left out of messages.
  JsonFields(const Json& object, std::string location, std::string prefix = {});

  [[nodiscard]] const Status& status() const noexcept { return status_; }
  /// Returns the path of the member that was refused first, with the prefix, or "" if none was.
  [[nodiscard]] const std::string& refused() const noexcept { return refused_; }
  /// Returns the member `name`, or null if it is absent or null.
  [[nodiscard]] const Json* find(std::string_view name) const noexcept;
  [[nodiscard]] bool has(std::string_view name) const noexcept { return find(name) != nullptr; }

  [[nodiscard]] std::optional<bool> boolean(std::string_view name);
  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view name, IntegerRange range);
  [[nodiscard]] std::int64_t required_integer(std::string_view name, IntegerRange range);
  [[nodiscard]] std::optional<double> real(std::string_view name, RealRange range);
  [[nodiscard]] double required_real(std::string_view name, RealRange range);
  [[nodiscard]] std::optional<std::string> string(std::string_view name);
  /// Reads a list of strings, or one string as a list of one.
  [[nodiscard]] std::optional<std::vector<std::string>> strings(std::string_view name);
  /// Reads a list of integers, or one integer as a list of one.
  [[nodiscard]] std::optional<std::vector<std::int64_t>> integers(std::string_view name,
                                                                  IntegerRange range);

  /// Refuses the member `name` because of `problem`. An earlier refusal is kept.
  void refuse(std::string_view name, std::string_view problem);
  /// Refuses the first member that is not in `names`. An earlier refusal is kept.
  void refuse_others(std::initializer_list<std::string_view> names);
  /// Records the failure of reading a member object. An earlier refusal is kept.
  void refuse(const Status& status);

private:
  const Json& object_;
  std::string location_;
  std::string prefix_;
  std::string refused_;
  Status status_;
};

}  // namespace tidemill
