// SPDX-License-Identifier: Apache-2.0
// A folder with all that a small run needs, and a look at what runs leave behind in it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tests/process/program_run.hpp"
#include "tests/support/temporary_directory.hpp"

namespace tidemill::test {

/// How far the commits of a run have come.
struct CommitState {
  std::optional<std::uint64_t> last_step;  // none: no commit yet
  bool leftovers = false;                  // files of a commit that did not come to its manifest
};

/// A temporary directory in which the program is run.
class RunFolder : public TemporaryDirectory {
public:
  /// Writes a file below the folder.
  void write(const std::string& name, const std::string& text) const;
  /// Writes `rows.jsonl`: 40 sums, as prompts with answers.
  void write_rows() const;

  /// Runs the program to its end. Nothing when it takes longer than `hang`.
  [[nodiscard]] std::optional<Ended> run(const std::vector<std::string>& arguments,
                                         std::chrono::seconds hang = kHang) const;

  /// Returns the bytes of the model, or else the adapter, in `runs/NAME/export`; empty: there is
  /// none.
  [[nodiscard]] std::string exported_weights(const std::string& name) const;
  /// Returns the names of all that lies below `runs/NAME/export`, sorted.
  [[nodiscard]] std::vector<std::string> exported_files(const std::string& name) const;
  /// Returns the `step` of each training line of `metrics.jsonl`, in the file's order.
  [[nodiscard]] std::vector<std::uint64_t> metrics_steps(const std::string& name) const;
  /// Returns the evaluations of `metrics.jsonl`, sorted: the file's order is not fixed.
  [[nodiscard]] std::vector<std::string> evaluations(const std::string& name) const;
  /// Returns the bytes of `samples.jsonl`.
  [[nodiscard]] std::string samples(const std::string& name) const;
  [[nodiscard]] CommitState commits(const std::string& name) const;
  /// Returns the manifests of a run's commits, newest first.
  [[nodiscard]] std::vector<std::filesystem::path> manifests(const std::string& name) const;
  /// Returns the name of the file that holds the part `part` of a commit.
  [[nodiscard]] static std::string object_of(const std::filesystem::path& manifest,
                                             const std::string& part);
};

/// Reads a whole file; empty when it is not there.
[[nodiscard]] std::string read_file(const std::filesystem::path& path);

/// Returns 1, 2, ..., `last`.
[[nodiscard]] std::vector<std::uint64_t> steps_up_to(std::uint64_t last);

/// What a run looked like that nobody disturbed.
struct Undisturbed {
  std::string weights;
  std::string samples;
  std::vector<std::uint64_t> steps;
  std::vector<std::string> evaluations;
  std::vector<std::string> exported_files;
};

/// Returns what the finished run NAME left.
[[nodiscard]] Undisturbed look_at(const RunFolder& folder, const std::string& name);

/// Returns how `run` differs from `expected`; empty when it does not: same weights, same samples,
/// each step and each evaluation recorded once, same files exported.
[[nodiscard]] std::string difference(const Undisturbed& expected, const Undisturbed& run);

/// Returns the YAML of a model with random weights, the arithmetic example's in shape.
[[nodiscard]] std::string random_model();

}  // namespace tidemill::test
