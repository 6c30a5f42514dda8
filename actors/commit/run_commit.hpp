// SPDX-License-Identifier: Apache-2.0
// What one commit of a run holds, and where commits are kept.
#pragma once

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
  std::uint64_t step = 0;       // of the weights it was of
  std::uint32_t num_worse = 0;  // evaluations since, none of them better
  engines::Snapshot weights;    // empty unless they are kept
};

/// A consistent cut through a run between two steps: everything that a resumed run starts from.
/// Random numbers are keyed by sample, and the keeper's ledger follows from version and rows, so
/// neither needs a place here.
struct RunCommit {
  engines::Snapshot weights;  // its version is the commit's
  TensorMap optimizer;
  StreamImage stream;  // empty for workflows without a stream
  RecordMarks records;
  std::optional<BestSoFar> best;     // of runs that look for it
  std::uint64_t evaluated_step = 0;  // of the last evaluation on record; 0: none
  std::uint64_t data_position = 0;   // of workflows that read data without a stream
  std::string data_digest;           // read from a commit; `RunInputs` has what is written
};

/// What a run was made from: with it a commit becomes a model again, and a resumed run can tell
/// that it goes on with what it began with.
struct RunInputs {
  std::string model;            // the model's directory
  bool random_weights = false;  // only its config was read
  std::string data_digest;      // of the training data
  std::string adapter_config;   // as `adapter_config.json` has it; empty without an adapter
};

/// Where a run's commits are kept.
///
/// Threads: one call at a time. Calls block: they are made through a `WorkPort`.
class CommitStore {
public:
  CommitStore() = default;
  CommitStore(const CommitStore&) = delete;
  CommitStore& operator=(const CommitStore&) = delete;
  virtual ~CommitStore() = default;

  /// Tells what every later commit is to say about its run. May be ignored.
  virtual void set_inputs(const RunInputs& /*inputs*/) {}

  /// Makes `commit` the last one, durably and in one step.
  /// Errors: those of the file system; the previous commit stands then.
  [[nodiscard]] virtual Status save(const RunCommit& commit) = 0;

  /// Returns the last commit; nothing for a run that has none yet.
  /// Errors: `kCorruptData` naming the file; `kInvalidArgument` when the commit is of other inputs.
  [[nodiscard]] virtual Result<std::optional<RunCommit>> load() = 0;
};

}  // namespace tidemill::actors
