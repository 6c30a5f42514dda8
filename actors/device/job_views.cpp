// SPDX-License-Identifier: Apache-2.0
#include "actors/device/job_views.hpp"

#include <chrono>
#include <utility>

#include <caf/all.hpp>

#include "actors/end_with.hpp"
#include "actors/errors.hpp"

namespace tidemill::actors {

AdapterRequest load_request(const JobView& view, const std::string& name,
                            const engines::Snapshot& snapshot) {
  AdapterRequest request;
  request.action = AdapterAction::kLoad;
  request.name = name;
  request.version = snapshot.version;
  request.config = view.config;
  request.tensors = snapshot.adapter;
  request.created = view.created;
  return request;
}

namespace {

using engines::RolloutRequest;
using engines::RolloutResult;
using engines::Snapshot;

// A device replies, or ends and with it this actor. The deadline only bounds the list of requests.
constexpr auto kReplyTime = std::chrono::seconds(24 * 60 * 60);

struct JobTrainingState {
  static inline const char* name = "job-training";
  JobTrainingState() = default;
  JobView view;
};

using TrainingSelf = TrainingActor::stateful_pointer<JobTrainingState>;

void publish(TrainingSelf self, const Snapshot& snapshot) {
  const JobView& view = self->state.view;
  if (view.publish_every == 0 || view.public_name.empty() ||
      snapshot.version.step % view.publish_every != 0 || snapshot.adapter.empty()) {
    return;
  }
  self->request(view.device, kReplyTime, atom::adapters_v,
                load_request(view, view.public_name, snapshot))
      .then([](const AdapterList&) {},
            [](const caf::error&) {});  // clients keep the version before
}

TrainingActor::behavior_type job_training(TrainingSelf self, JobView view) {
  end_with(self, view.device);
  self->state.view = std::move(view);
  return {
      [self](atom::train, TrainRequest& request) {
        auto promise = self->make_response_promise<TrainOutcome>();
        const JobView& job = self->state.view;
        self->request(job.device, kReplyTime, atom::train_v, job.job, std::move(request))
            .then(
                [self, promise](TrainOutcome& outcome) mutable {
                  publish(self, outcome.snapshot);
                  promise.deliver(std::move(outcome));
                },
                [promise](const caf::error& error) mutable { promise.deliver(error); });
        return promise;
      },
      [self](atom::capture) {
        return self->delegate(self->state.view.device, atom::capture_v, self->state.view.job);
      },
      [self](atom::restore, TrainingState& saved) {
        return self->delegate(self->state.view.device, atom::restore_v, self->state.view.job,
                              std::move(saved));
      },
  };
}

struct JobServingState {
  static inline const char* name = "job-serving";
  JobServingState() = default;
  JobView view;
};

using ServingSelf = ServingActor::stateful_pointer<JobServingState>;

caf::typed_response_promise<RolloutResult> generate(ServingSelf self, RolloutRequest& request) {
  const JobView& view = self->state.view;
  auto promise = self->make_response_promise<RolloutResult>();
  const SampleId id = request.id;
  // The random numbers stay those of the id that the run knows.
  request.draw_key = request.key();
  request.id.value += view.first_sample;
  request.adapter = view.rollout_name;
  // Clients come first, and jobs share what they leave.
  request.priority = engines::Priority::kBackground;
  request.tenant = view.rollout_name;
  self->request(view.device, kReplyTime, atom::generate_v, std::move(request))
      .then(
          [promise, id](RolloutResult& result) mutable {
            result.id = id;
            promise.deliver(std::move(result));
          },
          [promise](const caf::error& error) mutable { promise.deliver(error); });
  return promise;
}

caf::typed_response_promise<PolicyVersion> load(ServingSelf self, const Snapshot& snapshot) {
  const JobView& view = self->state.view;
  auto promise = self->make_response_promise<PolicyVersion>();
  self->request(view.device, kReplyTime, atom::adapters_v,
                load_request(view, view.rollout_name, snapshot))
      .then([promise,
             version = snapshot.version](const AdapterList&) mutable { promise.deliver(version); },
            [promise](const caf::error& error) mutable { promise.deliver(error); });
  return promise;
}

ServingActor::behavior_type job_serving(ServingSelf self, JobView view) {
  end_with(self, view.device);
  self->attach_functor([device = view.device, name = view.rollout_name] {
    AdapterRequest unload;
    unload.action = AdapterAction::kUnload;
    unload.name = name;
    caf::anon_send(device, atom::adapters_v, std::move(unload));
  });
  self->state.view = std::move(view);
  return {
      [self](atom::generate, RolloutRequest& request) { return generate(self, request); },
      [self](atom::cancel, SampleId id) {
        const JobView& job = self->state.view;
        self->send(job.device, atom::cancel_v, SampleId{id.value + job.first_sample});
      },
      [self](atom::load, Snapshot& snapshot) { return load(self, snapshot); },
      [](atom::adapters, const AdapterRequest&) -> caf::result<AdapterList> {
        return to_caf_error({Errc::kUnimplemented, "a job serves no adapters by name"});
      },
  };
}

}  // namespace

TrainingActor spawn_job_training(caf::actor_system& system, JobView view) {
  return system.spawn(job_training, std::move(view));
}

ServingActor spawn_job_serving(caf::actor_system& system, JobView view) {
  return system.spawn(job_serving, std::move(view));
}

}  // namespace tidemill::actors
