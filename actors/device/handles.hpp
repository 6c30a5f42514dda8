// SPDX-License-Identifier: Apache-2.0
// The protocols of actors that generate and train with a model, and of the device, which does both.
#pragma once

#include <memory>
#include <string>

#include <caf/replies_to.hpp>
#include <caf/typed_actor.hpp>

#include "actors/atoms.hpp"
#include "actors/device/messages.hpp"
#include "actors/type_ids.hpp"

namespace tidemill::actors {

/// SERVING: generates responses to prompts with the weights and the adapters that it has loaded.
using ServingActor = caf::typed_actor<
    // Generates a response to one prompt. Replies when the response has ended; if generation fails,
    // the finish reason of the reply is `kFailed`. A second request with the id of one in flight
    // ends the first, whose finish reason is `kCancelled`. Fails with the errors of
    // `RolloutEngine::submit`, or with `kUnavailable` if the device that was to generate the
    // response left or was quarantined before it replied, or if weights of a newer incarnation were
    // loaded.
    caf::replies_to<atom::generate, engines::RolloutRequest>::with<engines::RolloutResult>,
    // Ends a request early; the finish reason of its reply is `kCancelled`. Unknown ids are
    // ignored.
    caf::reacts_to<atom::cancel, SampleId>,
    // Loads new weights for generation. Their digest is checked, and they are served once the
    // responses in flight have ended. Replies with the version as soon as it is accepted. The
    // first weights of a newer incarnation end all earlier requests, which fail with
    // `kUnavailable`. Fails with the errors of `RolloutEngine::load`.
    caf::replies_to<atom::load, engines::Snapshot>::with<PolicyVersion>,
    // Lists, loads or unloads adapters that requests may name. Replies with the adapters that are
    // then loaded. Fails with the errors of `open_adapter` and of `NamedAdapters`, or with
    // `kUnimplemented` if it serves no adapters by name.
    caf::replies_to<atom::adapters, AdapterRequest>::with<AdapterList>>;

/// TOKEN LISTENER: receives tokens as they are generated.
using TokenListenerActor = caf::typed_actor<
    // The next tokens of responses that the receiver requested with `stream`. Sent before the
    // replies that end the responses.
    caf::reacts_to<atom::tokens, TokenBatch>>;

/// STREAMING: serves, and sends tokens as it generates them.
using StreamingActor = ServingActor::extend<
    // As `generate`. In addition, sends the tokens of the response to the sender, which is a
    // `TokenListenerActor`.
    caf::replies_to<atom::stream, engines::RolloutRequest>::with<engines::RolloutResult>,
    // Replies with how busy it is.
    caf::replies_to<atom::status>::with<DeviceUsage>>;

/// TRAINING: trains one model, one request at a time. A request fails with `kUnavailable` if
/// another one is pending or if the device has no training job.
using TrainingActor = caf::typed_actor<
    // Trains on one batch and replies with the new weights, or only scores the batch. A request
    // that fails publishes nothing, but the working weights keep the updates of the minibatches
    // before the failure. The run must then return to a commit. Fails with the errors of
    // `TrainingJob::forward`, `forward_backward`, `optim_step`, `save` and `advance`.
    caf::replies_to<atom::train, TrainRequest>::with<TrainOutcome>,
    // Replies with the optimizer's state. Fails with the errors of `TrainingJob::advance`.
    caf::replies_to<atom::capture>::with<OptimizerState>,
    // Replaces the working weights and the optimizer's state. Replies with the version of the
    // weights. Fails with the errors of `TrainingJob::load`.
    caf::replies_to<atom::restore, TrainingState>::with<PolicyVersion>>;

/// JOBS: trains any number of adapters over one base, each in a job of its own. A request names its
/// job, and fails with `kNotFound` if the job is not open, or with `kUnavailable` if another
/// request of the job is pending. The results of a job do not depend on other jobs or on
/// generation, bit for bit.
using JobsActor = caf::typed_actor<
    // Opens a job. Replies with its id. Fails with the errors of `ModelRuntime::open_job`, with
    // `kInvalidArgument` if the id is already in use or the weight is not positive, or with
    // `kUnimplemented` if the device opens no jobs.
    caf::replies_to<atom::open, std::shared_ptr<const JobOpening>>::with<JobId>,
    // Ends a job and frees its memory. Its pending request fails with `kUnavailable`. Unknown ids
    // are ignored.
    caf::reacts_to<atom::close, JobId>,
    // Computes log-probabilities and, if there is a loss, adds gradients to those since the last
    // step. Fails with the errors of `TrainingJob::forward_backward`.
    caf::replies_to<atom::pass, JobId, std::shared_ptr<const PassRequest>>::with<PassOutcome>,
    // Updates the weights. Fails with the errors of `TrainingJob::optim_step`.
    caf::replies_to<atom::step, JobId,
                    std::shared_ptr<const engines::OptimStep>>::with<engines::UpdateReport>,
    // Replies with the weights as a snapshot of this version. Fails with the errors of
    // `TrainingJob::advance`.
    caf::replies_to<atom::save, JobId, PolicyVersion>::with<engines::Snapshot>,
    // As `TrainingActor`, for one job.
    caf::replies_to<atom::train, JobId, TrainRequest>::with<TrainOutcome>,
    caf::replies_to<atom::capture, JobId>::with<OptimizerState>,
    caf::replies_to<atom::restore, JobId, TrainingState>::with<PolicyVersion>>;

/// DEVICE: owns one model runtime, and serves and trains with it. No other actor steps the runtime.
/// Other actors hold a device as one of the protocols above. The requests of `TrainingActor` are
/// for job 0.
using DeviceActor = StreamingActor::extend_with<TrainingActor>::extend_with<JobsActor>::extend<
    // The port has run a piece of work of the device.
    caf::reacts_to<atom::worked>>;

/// An actor that serves, and the name under which logs and errors mention it.
struct ServingDevice {
  std::string name;
  ServingActor actor;
};

}  // namespace tidemill::actors
