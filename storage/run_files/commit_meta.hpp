// SPDX-License-Identifier: Apache-2.0
// The part `meta.json` of a commit: what the run was started with, and how far it has come.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/ids.hpp"
#include "base/result.hpp"
#include "storage/run_files/record_marks.hpp"

namespace tidemill::storage {

/// The name of the part in a commit.
inline constexpr const char* kCommitMetaPart = "meta.json";

/// The best evaluation before a commit.
struct BestMeta {
  double value = 0.0;
  std::uint64_t step = 0;       // of the evaluated weights
  std::uint32_t num_worse = 0;  // later evaluations, none of which was better
  std::string base_digest;      // of the weights, if the commit has them
  std::string adapter_digest;
  friend bool operator==(const BestMeta&, const BestMeta&) = default;
};

/// The content of the part. Digests are those of base/digest.hpp.
struct CommitMeta {
  std::string model;            // the directory of the model that the run started from
  bool random_weights = false;  // the run read only the model's config
  std::string data_digest;
  std::string tokenizer_digest;  // empty if unknown, as in older commits
  std::string config;            // the resolved configuration, YAML; empty in older commits
  PolicyVersion version;
  std::string base_digest;     // of the base weights
  std::string adapter_digest;  // empty if the run trains no adapter
  RecordMarks records;
  std::uint64_t evaluated_step = 0;  // of the last recorded evaluation; 0: none
  std::uint64_t data_position = 0;
  std::optional<BestMeta> best;
  friend bool operator==(const CommitMeta&, const CommitMeta&) = default;
};

/// Returns the part as indented JSON with a final newline.
[[nodiscard]] std::string write_commit_meta(const CommitMeta& meta);

/// Parses the part. Each error message begins with `location`.
/// Errors: `kInvalidArgument` if a newer version of the program wrote the part; `kCorruptData`
/// naming the field, or the byte of invalid JSON.
[[nodiscard]] Result<CommitMeta> parse_commit_meta(std::string_view text,
                                                   const std::string& location);

}  // namespace tidemill::storage
