// SPDX-License-Identifier: Apache-2.0
// Which seeds have been run, by which program, and what came of them: a file of JSON lines.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "tests/sim/seed_run.hpp"

namespace tidemill::test {

/// A stretch of seeds that was run in one go.
struct SeedRange {
  std::string program;  // its digest
  std::uint64_t first = 0;
  std::uint64_t end = 0;  // one after the last
  double seconds = 0.0;
  SimulationCounts counts;
  std::vector<std::pair<std::uint64_t, std::string>> failures;  // seed, message
};

/// The lines of a ledger.
struct SeedLedger {
  std::vector<SeedRange> ranges;
  bool torn = false;  // the last line is not whole: its writer was killed

  /// Returns the seed after the highest one that was run; `otherwise` when there is none.
  [[nodiscard]] std::uint64_t next_seed(std::uint64_t otherwise) const;

  /// Returns the ledger in a few lines for people: seeds, programs, sums, failures.
  [[nodiscard]] std::string to_text() const;
};

/// Reads a ledger; one that is not there is empty.
/// Errors: `kCorruptData` naming file and line; those of the file system.
[[nodiscard]] Result<SeedLedger> read_seed_ledger(const std::filesystem::path& path);

/// Adds one line in one write. What a killed writer left is ended first.
/// Errors: those of the file system.
[[nodiscard]] Status append_to_ledger(const std::filesystem::path& path, const SeedRange& range);

}  // namespace tidemill::test
