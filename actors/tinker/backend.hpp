// SPDX-License-Identifier: Apache-2.0
// What Tinker's API needs of the device: training jobs over one base, and generation.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "actors/gateway/tinker/calls.hpp"
#include "base/result.hpp"
#include "engines/rollout_engine.hpp"
#include "engines/snapshot.hpp"
#include "engines/training_job.hpp"

namespace tidemill::actors::tinker {

/// The state of a job that can be stored: its adapter and, if wanted, its optimizer.
struct JobState {
  engines::Snapshot weights;
  std::optional<TensorMap> optimizer;
};

/// A job to open.
struct NewJob {
  std::string name;  // no open job has it
  std::string tenant;
  LoraSettings lora;
  std::uint64_t seed = 0;         // of the initial weights
  std::optional<JobState> state;  // to continue from
};

/// Sequences to run through the model.
struct ForwardWork {
  std::string job;
  bool backward = false;  // add gradients
  engines::TokenSumOptions loss;
  std::vector<engines::TrainSequence> sequences;
};

/// What `ForwardWork` gives.
struct ForwardOutcome {
  std::vector<std::vector<float>> logprobs;  // of each sequence (T), in the order of the work
  double loss = 0.0;                         // the sum over all targets
};

/// An adapter to generate with.
struct PublishedAdapter {
  std::string name;
  LoraSettings lora;
  engines::Snapshot weights;
};

/// Receives the result of a request, exactly once and not within the call that made it.
template <class T>
using Done = std::function<void(Result<T>)>;
using DoneStatus = std::function<void(Status)>;

/// Trains and generates. A job takes one request at a time: the caller waits for `done` before the
/// next. A request made earlier fails with `kUnavailable`. Requests of different jobs share the
/// device.
///
/// Threads: one call at a time. Calls `done` on the thread of its caller.
class TuningBackend {
public:
  TuningBackend() = default;
  TuningBackend(const TuningBackend&) = delete;
  TuningBackend& operator=(const TuningBackend&) = delete;
  virtual ~TuningBackend() = default;

  /// Opens a job. Errors: `kInvalidArgument` (rank, modules, a state that does not fit),
  /// `kResourceExhausted`.
  virtual void open(NewJob job, DoneStatus done) = 0;
  /// Closes a job at once. Its pending request fails with `kUnavailable`.
  virtual void close(const std::string& job) = 0;
  /// Runs sequences. After an error, the job has no gradients. Errors: those of
  /// `TrainingJob::forward_backward`, and of the loss.
  virtual void forward(ForwardWork work, Done<ForwardOutcome> done) = 0;
  /// Takes an optimizer step. Errors: those of `TrainingJob::optim_step`.
  virtual void step(const std::string& job, engines::OptimStep step,
                    Done<engines::UpdateReport> done) = 0;
  /// Drops the gradients of a job.
  virtual void discard_gradients(const std::string& job, DoneStatus done) = 0;
  /// Reads the state of a job.
  virtual void save(const std::string& job, bool with_optimizer, Done<JobState> done) = 0;
  /// Replaces the state of a job. Without an optimizer, the optimizer starts anew.
  /// Errors: those of `TrainingJob::load`.
  virtual void load(const std::string& job, JobState state, DoneStatus done) = 0;

  /// Makes an adapter available under its name, replacing the one that had it.
  /// Errors: those of `NamedAdapters::load`.
  virtual void publish(PublishedAdapter adapter, DoneStatus done) = 0;
  /// Ends what `publish` began, once no request uses the adapter.
  virtual void unpublish(const std::string& name) = 0;
  /// Generates. Errors: those of `RolloutEngine::submit`.
  virtual void generate(engines::RolloutRequest request, Done<engines::RolloutResult> done) = 0;
  /// Ends a request early. Its finish reason is `kCancelled`.
  virtual void cancel(SampleId id) = 0;
};

}  // namespace tidemill::actors::tinker
