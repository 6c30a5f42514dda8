// SPDX-License-Identifier: Apache-2.0
#include "storage/jobs/job_record.hpp"

#include <array>

namespace tidemill::storage {
namespace {

constexpr std::array<std::string_view, 7> kStateNames = {
    "validating_files", "queued", "running", "paused", "succeeded", "failed", "cancelled"};

}  // namespace

std::string_view job_state_name(JobState state) noexcept {
  return kStateNames[static_cast<std::size_t>(state)];
}

std::optional<JobState> parse_job_state(std::string_view name) noexcept {
  for (std::size_t i = 0; i < kStateNames.size(); ++i) {
    if (kStateNames[i] == name) {
      return static_cast<JobState>(i);
    }
  }
  return std::nullopt;
}

bool has_ended(JobState state) noexcept {
  return state == JobState::kSucceeded || state == JobState::kFailed ||
         state == JobState::kCancelled;
}

bool may_follow(JobState from, JobState to) noexcept {
  if (has_ended(from)) {
    return false;
  }
  switch (to) {
    case JobState::kValidatingFiles: return false;
    case JobState::kQueued: return from != JobState::kQueued;
    case JobState::kRunning: return from == JobState::kQueued;
    case JobState::kPaused: return from == JobState::kQueued || from == JobState::kRunning;
    case JobState::kSucceeded: return from == JobState::kRunning;
    case JobState::kFailed:
    case JobState::kCancelled: return true;
  }
  return false;
}

std::string_view job_method_name(JobMethod method) noexcept {
  return method == JobMethod::kSupervised ? "supervised" : "reinforcement";
}

std::string_view string_operation_name(StringOperation operation) noexcept {
  switch (operation) {
    case StringOperation::kEq: return "eq";
    case StringOperation::kNe: return "ne";
    case StringOperation::kLike: return "like";
    case StringOperation::kIlike: return "ilike";
  }
  return "";
}

std::string_view event_level_name(EventLevel level) noexcept {
  switch (level) {
    case EventLevel::kInfo: return "info";
    case EventLevel::kWarn: return "warn";
    case EventLevel::kError: return "error";
  }
  return "";
}

std::string_view event_type_name(EventType type) noexcept {
  return type == EventType::kMetrics ? "metrics" : "message";
}

}  // namespace tidemill::storage
