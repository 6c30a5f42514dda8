// SPDX-License-Identifier: Apache-2.0
// Names of row outcomes.
#include "storage/records/verdict.hpp"

namespace tidemill::storage {

std::string_view row_outcome_name(RowOutcome outcome) noexcept {
  switch (outcome) {
    case RowOutcome::kTrained: return "trained";
    case RowOutcome::kDropped: return "dropped";
    case RowOutcome::kFiltered: return "filtered";
    case RowOutcome::kFailed: return "failed";
  }
  return "unknown";
}

}  // namespace tidemill::storage
