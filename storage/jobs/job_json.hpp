// SPDX-License-Identifier: Apache-2.0
// Private to storage/jobs. The JSON texts of the database's columns.
#pragma once

#include <string>

#include "base/result.hpp"
#include "storage/jobs/job_record.hpp"

namespace tidemill::storage {

/// Returns hyperparameters as JSON text.
[[nodiscard]] std::string to_json_text(const JobHyperparameters& values);
/// Reads them. Errors: `kCorruptData` beginning with `location`.
[[nodiscard]] Result<JobHyperparameters> parse_hyperparameters(const std::string& text,
                                                               const std::string& location);

/// Returns what a client has asked for as JSON text.
[[nodiscard]] std::string to_json_text(const JobSpec& spec);
/// Reads it. Errors: `kCorruptData` beginning with `location`.
[[nodiscard]] Result<JobSpec> parse_spec(const std::string& text, const std::string& location);

/// Returns ids as JSON text.
[[nodiscard]] std::string to_json_text(const std::vector<std::string>& ids);
/// Reads them. Errors: `kCorruptData` beginning with `location`.
[[nodiscard]] Result<std::vector<std::string>> parse_ids(const std::string& text,
                                                         const std::string& location);

}  // namespace tidemill::storage
