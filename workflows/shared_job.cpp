// SPDX-License-Identifier: Apache-2.0
#include "workflows/shared_job.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include <caf/all.hpp>

#include "actors/errors.hpp"
#include "engines/runtime/memory_estimate.hpp"

namespace tidemill::workflows {
namespace {

// How long the device may take to open or restore a job beside all else that it does.
constexpr auto kOpenTime = std::chrono::minutes(10);
// The ids of requests: each job has its own 2^40.
constexpr unsigned kSampleBits = 40;

template <class Value, class... Ts>
Result<Value> ask(caf::actor_system& system, const actors::DeviceActor& device, Ts... message) {
  caf::scoped_actor self{system};
  Result<Value> result = Status(Errc::kTimeout, "no reply");
  self->request(device, kOpenTime, std::move(message)...)
      .receive([&](Value& value) { result = std::move(value); },
               [&](const caf::error& error) { result = actors::from_caf_error(error); });
  return result;
}

// Returns how many positions of the cache a run reserves. A batch that needs more is computed in
// smaller micro-batches, with the same bits.
std::int64_t cache_tokens(const SharedDevice& shared, const SharedJobOptions& options) {
  const std::int64_t page_bytes =
      engines::kv_bytes_for(options.model, options.runtime, engines::kPageTokens);
  const std::int64_t wanted = options.runtime.kv_bytes / page_bytes * engines::kPageTokens;
  return std::min(wanted, shared.max_tokens);
}

engines::JobOptions job_options(const engines::RuntimeOptions& runtime,
                                std::int64_t reserved_tokens) {
  engines::JobOptions options;
  options.adapter = *runtime.adapter;
  options.optimizer = *runtime.optimizer;
  options.activation_bytes = runtime.activation_bytes;
  options.limits = runtime.limits;
  options.recompute = runtime.recompute;
  options.window_tokens = runtime.window_tokens;
  options.reserved_tokens = reserved_tokens;
  return options;
}

// Returns the weights at `origin`, to which the job is restored. `initial` are those it opened
// with.
Result<engines::Snapshot> restore(caf::actor_system& system, const actors::DeviceActor& device,
                                  JobId job, engines::Snapshot initial,
                                  const actors::RunOrigin& origin) {
  if (!origin.commit.has_value()) {
    initial.version.incarnation = origin.incarnation;
    return initial;
  }
  engines::Snapshot weights = origin.commit->weights;
  if (weights.base_digest != initial.base_digest) {
    return invalid_argument("model.path: not the model that the run began with");
  }
  weights.version.incarnation = origin.incarnation;
  TIDEMILL_RETURN_IF_ERROR(
      ask<PolicyVersion>(system, device, atom::restore_v, job,
                         actors::TrainingState{weights, {origin.commit->optimizer}})
          .status());
  return weights;
}

}  // namespace

Status with_server_options(const Status& status) {
  return status.ok()
             ? status
             : Status(status.code(),
                      status.message() +
                          "; the server leaves more to each job with a larger "
                          "device.memory_bytes, or a smaller serve.tuning.max_running, "
                          "serve.tuning.job_tokens, serve.kv_bytes or serve.adapter_bytes; a "
                          "smaller train.adapter.rank needs less");
}

Result<std::unique_ptr<SharedJob>> SharedJob::open(caf::actor_system& system,
                                                   const SharedDevice& shared,
                                                   const SharedJobOptions& options,
                                                   const actors::RunOrigin& origin) {
  if (!options.runtime.adapter.has_value()) {
    return invalid_argument("train.adapter: must be set for a job of a server");
  }
  const JobId id{++*shared.last_job};
  actors::LossFactory make_loss = shared.progress == nullptr
                                      ? options.make_loss
                                      : counted_losses(options.make_loss, shared.progress);
  const auto opening = std::make_shared<const actors::JobOpening>(
      actors::JobOpening{id, job_options(options.runtime, cache_tokens(shared, options)),
                         std::move(make_loss), shared.weight});
  TIDEMILL_RETURN_IF_ERROR(ask<JobId>(system, shared.device, atom::open_v, opening).status());
  actors::JobView view;
  view.device = shared.device;
  view.job = id;
  view.config = engines::adapter_config_text(options.runtime.adapter->config);
  view.rollout_name = std::string(actors::kPrivateAdapterPrefix) + std::to_string(id.value);
  view.public_name = shared.public_name;
  view.publish_every = shared.publish_every;
  view.created = shared.created;
  view.first_sample = id.value << kSampleBits;
  std::unique_ptr<SharedJob> job(new SharedJob(std::move(view)));
  TIDEMILL_ASSIGN_OR_RETURN(
      engines::Snapshot initial,
      ask<engines::Snapshot>(system, shared.device, atom::save_v, id, PolicyVersion()));
  TIDEMILL_ASSIGN_OR_RETURN(job->weights,
                            restore(system, shared.device, id, std::move(initial), origin));
  return job;
}

SharedJob::~SharedJob() {
  caf::anon_send(view_.device, atom::close_v, view_.job);
}

Status SharedJob::serve(caf::actor_system& system) const {
  return ask<actors::AdapterList>(system, view_.device, atom::adapters_v,
                                  actors::load_request(view_, view_.rollout_name, weights))
      .status();
}

actors::JobView SharedJob::view_of(std::shared_ptr<const void> owner) const {
  actors::JobView view = view_;
  view.owner = std::move(owner);
  return view;
}

actors::TrainingActor SharedJob::start_training(caf::actor_system& system,
                                                std::shared_ptr<const void> owner) const {
  return actors::spawn_job_training(system, view_of(std::move(owner)));
}

actors::ServingActor SharedJob::start_serving(caf::actor_system& system,
                                              std::shared_ptr<const void> owner) const {
  return actors::spawn_job_serving(system, view_of(std::move(owner)));
}

}  // namespace tidemill::workflows
