// SPDX-License-Identifier: Apache-2.0
// Runs that train an adapter on the device of a server, instead of opening a device of their own.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "actors/device/job_views.hpp"
#include "actors/supervisor/spawn.hpp"
#include "base/result.hpp"
#include "engines/runtime/model_runtime.hpp"
#include "workflows/counted_loss.hpp"
#include "workflows/memory_plan.hpp"

namespace tidemill::workflows {

/// A device that serves a base model, and how one run uses it.
struct SharedDevice {
  actors::DeviceActor device;
  /// Numbers the jobs of the device from 1 on. Shared by all runs.
  std::shared_ptr<std::atomic<std::uint64_t>> last_job;
  std::string public_name;          // as in `actors::JobView`
  std::uint64_t publish_every = 0;  // as in `actors::JobView`
  std::int64_t created = 0;         // as in `actors::JobView`
  double weight = 1.0;              // as in `actors::JobOpening`
  /// The most tokens of a sequence of the run, and the most positions of the cache that the run may
  /// reserve.
  std::int64_t max_tokens = 0;
  std::shared_ptr<MinibatchProgress> progress;  // kept up to date while the run trains; may be null
};

/// Returns `status`, about the memory of a run on a shared device, with the options of the server
/// that leave more to the run.
[[nodiscard]] Status with_server_options(const Status& status);

/// What a run trains on a shared device.
struct SharedJobOptions {
  const engines::ModelConfig& model;  // borrowed until `SharedJob::open` returns
  /// Of these, only `kv_bytes` and the members that `engines::JobOptions` also has are used.
  /// `optimizer` must be set. The job reserves `kv_bytes` of cache, at most
  /// `SharedDevice::max_tokens`.
  engines::RuntimeOptions runtime;
  actors::LossFactory make_loss;
};

/// A job on a shared device, for one incarnation of a run. The destructor asks the device to close
/// the job; it does not wait.
class SharedJob {
public:
  /// Opens a job and restores it to `origin`. Blocks until the device has replied to up to three
  /// requests, for at most 10 minutes each.
  /// Errors: those of `actors::JobsActor`; `kInvalidArgument` if `adapter` is not set, or if the
  /// commit was made from another model; `kTimeout` without a reply in time.
  /// Threads: not to be called by an actor, because it blocks.
  [[nodiscard]] static Result<std::unique_ptr<SharedJob>> open(caf::actor_system& system,
                                                               const SharedDevice& shared,
                                                               const SharedJobOptions& options,
                                                               const actors::RunOrigin& origin);
  SharedJob(const SharedJob&) = delete;
  SharedJob& operator=(const SharedJob&) = delete;
  ~SharedJob();

  /// The weights at the origin. Their version carries its incarnation.
  engines::Snapshot weights;

  /// Has the device serve `weights` for rollouts. Call it before `start_serving`. Blocks as `open`
  /// does.
  /// Errors: those of `NamedAdapters::load`; `kTimeout`.
  [[nodiscard]] Status serve(caf::actor_system& system) const;

  /// Spawn the actors that train and generate with the job. Each keeps `owner` alive, which must
  /// own the job.
  [[nodiscard]] actors::TrainingActor start_training(caf::actor_system& system,
                                                     std::shared_ptr<const void> owner) const;
  [[nodiscard]] actors::ServingActor start_serving(caf::actor_system& system,
                                                   std::shared_ptr<const void> owner) const;

private:
  explicit SharedJob(actors::JobView view) : view_(std::move(view)) {}

  [[nodiscard]] actors::JobView view_of(std::shared_ptr<const void> owner) const;

  actors::JobView view_;
};

}  // namespace tidemill::workflows
