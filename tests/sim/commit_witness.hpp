// SPDX-License-Identifier: Apache-2.0
// Checks commits: a commit must be one consistent state of weights, rows, data position, records
// and the best evaluation (I1, I5).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "actors/commit/run_commit.hpp"
#include "tests/sim/simulated_parts.hpp"

namespace tidemill::test {

/// Compares every commit with the record files that it names and the weights that were published.
class CommitWitness {
public:
  using Violate = std::function<void(const std::string&)>;

  /// `disk` must outlive the witness.
  CommitWitness(const SimulationOptions& options, SimulatedDisk& disk, Violate violate);

  /// Checks a commit before it becomes the last one, in the form in which it will be read.
  void check_commit(const actors::RunCommit& commit);

  /// Checks that a run starts from exactly the last commit.
  void check_host_and_origin(const std::optional<actors::RunCommit>& origin) const;

  /// Checks a run that has ended well after `steps` with the weights of `digest`: its last commit
  /// must hold that step and those weights, and every step must be recorded once.
  void check_end(std::uint64_t steps, const std::string& digest) const;

  /// Returns whether every evaluation that was due up to `steps` is recorded.
  [[nodiscard]] bool all_evaluated(std::uint64_t steps) const;

  [[nodiscard]] std::uint64_t commits_checked() const { return commits_checked_; }
  [[nodiscard]] std::uint64_t bests_checked() const { return bests_checked_; }

private:
  struct Evaluation {
    std::uint64_t step = 0;
    double value = 0.0;
    bool scored = false;  // at least one response was scored
  };
  // The contents of the record lines.
  struct Recorded {
    std::uint64_t steps = 0;
    std::vector<Evaluation> evaluations;
  };

  [[nodiscard]] Recorded read_metrics(std::string_view text) const;
  void read_metrics_line(std::string_view line, Recorded& recorded) const;
  [[nodiscard]] std::set<std::uint64_t> read_samples(std::string_view text) const;
  void remember_digests(const actors::RunCommit& commit);
  [[nodiscard]] std::uint64_t draw_after(std::uint64_t groups) const;
  void check_stream(const actors::RunCommit& commit) const;
  void check_evaluations(const actors::RunCommit& commit,
                         const std::vector<Evaluation>& evaluations);
  void check_best(const std::optional<actors::BestSoFar>& best,
                  const std::vector<Evaluation>& evaluations);

  SimulationOptions options_;
  SimulatedDisk& disk_;
  Violate violate_;
  std::map<std::string, std::optional<double>> evaluated_;  // by the digest of the weights
  std::uint64_t commits_checked_ = 0;
  std::uint64_t bests_checked_ = 0;
};

}  // namespace tidemill::test
