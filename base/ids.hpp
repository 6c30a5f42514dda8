// SPDX-License-Identifier: Apache-2.0
// Strong identifiers that cross module boundaries. All are plain values.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

namespace tidemill {

/// Names one row of a stream, and so one sample, forever. Row ids increase in admission order.
struct SampleId {
  std::uint64_t value = 0;
  friend auto operator<=>(const SampleId&, const SampleId&) = default;
};

/// Names the group of samples that share one prompt draw.
struct GroupId {
  std::uint64_t value = 0;
  friend auto operator<=>(const GroupId&, const GroupId&) = default;
};

/// Names a training job of a device. The device's own job, which trains the policy, is job 0; no
/// two other jobs have the same id, at any time.
struct JobId {
  std::uint64_t value = 0;
  friend auto operator<=>(const JobId&, const JobId&) = default;
};

/// Names one publication of a policy line's weights.
///
/// `step` counts trained batches, not optimizer steps. A restart opens a new `incarnation` of the
/// same `line`. Versions are ordered within one line only.
struct PolicyVersion {
  std::uint32_t line = 0;
  std::uint32_t incarnation = 0;
  std::uint64_t step = 0;
  friend auto operator<=>(const PolicyVersion&, const PolicyVersion&) = default;
};

/// Returns "line.incarnation.step", as logs and errors print it.
[[nodiscard]] std::string to_string(const PolicyVersion& version);

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, SampleId& x) {
  return f(x.value);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, GroupId& x) {
  return f(x.value);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, JobId& x) {
  return f(x.value);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, PolicyVersion& x) {
  return f(x.line, x.incarnation, x.step);
}

}  // namespace tidemill

template <>
struct std::hash<tidemill::SampleId> {
  std::size_t operator()(const tidemill::SampleId& id) const noexcept {
    return std::hash<std::uint64_t>{}(id.value);
  }
};
template <>
struct std::hash<tidemill::GroupId> {
  std::size_t operator()(const tidemill::GroupId& id) const noexcept {
    return std::hash<std::uint64_t>{}(id.value);
  }
};
