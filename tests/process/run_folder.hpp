// SPDX-License-Identifier: Apache-2.0
// A temporary folder in which small runs are carried out, and access to their results.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tests/process/program_run.hpp"
#include "tests/support/temporary_directory.hpp"

namespace tidemill::test {

/// The state of a run's commits.
struct CommitState {
  std::optional<std::uint64_t> last_step;  // none: no commit yet
  bool leftovers = false;  // there are files of a commit whose manifest was not written
};

/// A temporary directory in which the program runs.
class RunFolder : public TemporaryDirectory {
public:
  /// Writes a file in the folder. `name` may contain subdirectories.
  void write(const std::string& name, const std::string& text) const;
  /// Writes `rows.jsonl`: 40 sums, as prompts with answers, which spaces make at least as long as
  /// `answer_bytes`.
  void write_rows(std::size_t answer_bytes = 0) const;

  /// Runs the program to its end. Returns nothing if that takes longer than `hang`.
  [[nodiscard]] std::optional<Ended> run(const std::vector<std::string>& arguments,
                                         std::chrono::seconds hang = kHang) const;

  /// Returns the bytes of the model, or else of the adapter, in `runs/NAME/export`, or an empty
  /// string if there is neither.
  [[nodiscard]] std::string exported_weights(const std::string& name) const;
  /// Returns the paths of all files and folders below `runs/NAME/export`, sorted.
  [[nodiscard]] std::vector<std::string> exported_files(const std::string& name) const;
  /// Returns the `step` of each training line of `metrics.jsonl`, in the order of the file.
  [[nodiscard]] std::vector<std::uint64_t> metrics_steps(const std::string& name) const;
  /// Returns the evaluations of `metrics.jsonl`, sorted, since their order in the file may vary.
  [[nodiscard]] std::vector<std::string> evaluations(const std::string& name) const;
  /// Returns the bytes of `samples.jsonl`.
  [[nodiscard]] std::string samples(const std::string& name) const;
  [[nodiscard]] CommitState commits(const std::string& name) const;
  /// Returns the manifests of a run's commits, newest first.
  [[nodiscard]] std::vector<std::filesystem::path> manifests(const std::string& name) const;
  /// Returns the name of the file that holds part `part` of a commit.
  [[nodiscard]] static std::string object_of(const std::filesystem::path& manifest,
                                             const std::string& part);
};

/// Returns the content of a file, or an empty string if it does not exist.
[[nodiscard]] std::string read_file(const std::filesystem::path& path);

/// Returns 1, 2, ..., `last`.
[[nodiscard]] std::vector<std::uint64_t> steps_up_to(std::uint64_t last);

/// The results of a run, as far as an undisturbed and a resumed run must agree.
struct RunOutput {
  std::string weights;
  std::string samples;
  std::vector<std::uint64_t> steps;
  std::vector<std::string> evaluations;
  std::vector<std::string> exported_files;
};

/// Returns the results of the finished run NAME.
[[nodiscard]] RunOutput run_output(const RunFolder& folder, const std::string& name);

/// Returns how `run` differs from `expected`, or an empty string if both have the same weights,
/// samples, recorded steps and evaluations, and exported files.
[[nodiscard]] std::string difference(const RunOutput& expected, const RunOutput& run);

/// Returns the YAML of a small rl run NAME on `rows.jsonl`, followed by `more`. Random weights
/// generate random bytes, and the pattern rewards about every other response.
[[nodiscard]] std::string small_rl_run(const std::string& name, const std::string& more);

/// Returns the YAML of a model with random weights and the shape of the arithmetic example.
[[nodiscard]] std::string random_model();

}  // namespace tidemill::test
