// SPDX-License-Identifier: Apache-2.0
// A file of JSON lines that records which seeds were run, by which program, and with what results.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "tests/sim/seed_run.hpp"

namespace tidemill::test {

/// A range of consecutive seeds that one program ran.
struct SeedRange {
  std::string program;  // digest of the program
  std::uint64_t first = 0;
  std::uint64_t end = 0;  // one after the last
  double seconds = 0.0;
  SimulationCounts counts;
  std::vector<std::pair<std::uint64_t, std::string>> failures;  // seed, message
};

/// The lines of a ledger.
struct SeedLedger {
  std::vector<SeedRange> ranges;
  bool torn = false;  // the last line is incomplete: its writer was killed

  /// Returns the seed after the highest one that was run, or `fallback` if none was run.
  [[nodiscard]] std::uint64_t next_seed(std::uint64_t fallback) const;

  /// Returns a summary of the ledger in a few readable lines: ranges, programs, sums, failures.
  [[nodiscard]] std::string to_text() const;
};

/// Reads a ledger. A file that does not exist gives an empty ledger.
/// Errors: `kCorruptData` naming file and line; those of the file system.
[[nodiscard]] Result<SeedLedger> read_seed_ledger(const std::filesystem::path& path);

/// Appends one line. If a killed writer left an incomplete line, that line is ended first.
/// Both take one write.
/// Errors: those of the file system.
[[nodiscard]] Status append_to_ledger(const std::filesystem::path& path, const SeedRange& range);

}  // namespace tidemill::test
