// SPDX-License-Identifier: Apache-2.0
// The contents of a run's commit, and the interface of the store that keeps commits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "actors/recorder/messages.hpp"
#include "actors/stream/messages.hpp"
#include "base/ids.hpp"
#include "base/result.hpp"
#include "engines/snapshot.hpp"

namespace tidemill::actors {

/// The best evaluation so far.
struct BestSoFar {
  double value = 0.0;           // `eval_mean_at_k`, or `eval_loss`
  std::uint64_t step = 0;       // of the evaluated weights
  std::uint32_t num_worse = 0;  // later evaluations, none of which was better
  engines::Snapshot weights;    // empty unless they are kept
};

/// A consistent state of a run between two steps: everything that a resumed run starts from. Two
/// things need not be stored: random numbers are keyed by sample, and the keeper's ledger is
/// derived from the version and the rows.
struct RunCommit {
  engines::Snapshot weights;  // their version is that of the commit
  TensorMap optimizer;
  StreamImage stream;  // empty for workflows without a stream
  RecordMarks records;
  std::optional<BestSoFar> best;     // of runs that look for it
  std::uint64_t evaluated_step = 0;  // of the last recorded evaluation; 0: none
  std::uint64_t data_position = 0;   // of workflows that read data without a stream
  // Set by `load`. `save` writes those of `RunInputs`.
  std::string data_digest;
  std::string tokenizer_digest;  // empty if unknown
};

/// The inputs of a run. They are needed to make a model from a commit, and to check that a resumed
/// run has the same inputs as the run had at its start.
struct RunInputs {
  std::string model;                  // the model's directory
  bool random_weights = false;        // only the model's config was read
  std::string data_digest;            // of the training data
  std::string adapter_config;         // text of `adapter_config.json`; empty without an adapter
  std::string tokenizer_digest = {};  // empty if the run needs no tokenizer
  std::string data_files = {};        // their names, for messages
};

/// Keeps the commits of a run.
///
/// Threads: one call at a time. Calls block, so actors make them through a `WorkPort`.
class CommitStore {
public:
  CommitStore() = default;
  CommitStore(const CommitStore&) = delete;
  CommitStore& operator=(const CommitStore&) = delete;
  virtual ~CommitStore() = default;

  /// Sets the inputs that every later commit records. An implementation may ignore them.
  virtual void set_inputs(const RunInputs& /*inputs*/) {}

  /// Returns the step of the last commit without reading it, or nothing if the run has none yet.
  [[nodiscard]] virtual std::optional<std::uint64_t> last_step() const = 0;

  /// Makes `commit` the last one, durably and atomically.
  /// Errors: those of the file system; the previous commit then stays the last one.
  [[nodiscard]] virtual Status save(const RunCommit& commit) = 0;

  /// Returns the last commit, or nothing if the run has none yet.
  /// Errors: `kCorruptData` naming the file; `kInvalidArgument` if the commit has other inputs.
  [[nodiscard]] virtual Result<std::optional<RunCommit>> load() = 0;
};

}  // namespace tidemill::actors
