// SPDX-License-Identifier: Apache-2.0
// Runs the jobs of Tinker's API at a device actor. Private to this folder.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include <caf/all.hpp>

#include "actors/deadlines.hpp"
#include "actors/device/handles.hpp"
#include "actors/errors.hpp"
#include "actors/tinker/lora_config.hpp"
#include "actors/tinker/spawn.hpp"

namespace tidemill::actors::tinker {

/// The backend of an actor `Self`, which makes the requests. Borrows it.
template <class Self>
class DeviceBackend final : public TuningBackend {
public:
  using RunWork = std::function<void(const std::string& tenant, std::function<void()> work,
                                     std::function<void()> done)>;

  DeviceBackend(Self self, DeviceActor device, MakeJobOptions make_options, RunWork run_work,
                std::string base_model)
      : self_(self),
        device_(std::move(device)),
        make_options_(std::move(make_options)),
        run_work_(std::move(run_work)),
        base_model_(std::move(base_model)) {}

  void open(NewJob job, DoneStatus done) override {
    jobs_[job.name] = {JobId{}, job.tenant, job.lora};
    start(job.name, job.seed, std::move(job.state),
          [this, name = job.name, done = std::move(done)](const Status& status) {
            if (!status.ok()) {
              jobs_.erase(name);
            }
            done(status);
          });
  }

  void close(const std::string& job) override {
    const auto found = jobs_.find(job);
    if (found != jobs_.end()) {
      self_->send(device_, atom::close_v, found->second.id);
      jobs_.erase(found);
    }
  }

  void forward(ForwardWork work, Done<ForwardOutcome> done) override {
    const auto kept = std::make_shared<ForwardWork>(std::move(work));
    auto request = std::make_shared<PassRequest>();
    request->batch.sequences = kept->sequences;
    if (kept->backward) {
      request->make_loss = [loss = kept->loss](std::span<const engines::TrainSequence>)
          -> Result<std::unique_ptr<engines::TokenLoss>> {
        TIDEMILL_ASSIGN_OR_RETURN(engines::TokenSumLoss made, engines::TokenSumLoss::create(loss));
        return std::unique_ptr<engines::TokenLoss>(
            std::make_unique<engines::TokenSumLoss>(std::move(made)));
      };
    }
    ask<PassOutcome>(
        [done, kept](Result<PassOutcome> outcome) { done(to_outcome(*kept, std::move(outcome))); },
        atom::pass_v, id_of(kept->job), std::shared_ptr<const PassRequest>(std::move(request)));
  }

  void step(const std::string& job, engines::OptimStep step,
            Done<engines::UpdateReport> done) override {
    ask<engines::UpdateReport>(std::move(done), atom::step_v, id_of(job),
                               std::make_shared<const engines::OptimStep>(std::move(step)));
  }

  // Restoring the state that a job has drops its gradients.
  void discard_gradients(const std::string& job, DoneStatus done) override {
    save(job, true, [this, job, done](Result<JobState> state) {
      state.ok() ? restore(id_of(job), std::move(state).value(), done) : done(state.status());
    });
  }

  void save(const std::string& job, bool with_optimizer, Done<JobState> done) override {
    const JobId id = id_of(job);
    ask<engines::Snapshot>(
        [this, id, with_optimizer, done](Result<engines::Snapshot> snapshot) {
          if (!snapshot.ok()) {
            done(snapshot.status());
            return;
          }
          JobState state{std::move(snapshot).value(), std::nullopt};
          if (!with_optimizer) {
            done(std::move(state));
            return;
          }
          ask<OptimizerState>(
              [done, state](Result<OptimizerState> optimizer) {
                if (!optimizer.ok()) {
                  done(optimizer.status());
                  return;
                }
                JobState whole = state;
                whole.optimizer = std::move(optimizer.value().tensors);
                done(std::move(whole));
              },
              atom::capture_v, id);
        },
        atom::save_v, id, PolicyVersion{0, 0, ++versions_});
  }

  void load(const std::string& job, JobState state, DoneStatus done) override {
    if (state.optimizer) {
      restore(id_of(job), std::move(state), done);
      return;
    }
    // A new job has a new optimizer.
    self_->send(device_, atom::close_v, id_of(job));
    start(job, 0, std::move(state), std::move(done));
  }

  void publish(PublishedAdapter adapter, DoneStatus done) override {
    AdapterRequest request;
    request.action = AdapterAction::kLoad;
    request.name = adapter.name;
    request.version = {0, 0, ++versions_};
    request.config = engines::adapter_config_text(to_adapter_config(adapter.lora, base_model_));
    request.tensors = std::move(adapter.weights.adapter);
    ask<AdapterList>([done](const Result<AdapterList>& list) { done(list.status()); },
                     atom::adapters_v, std::move(request));
  }

  void unpublish(const std::string& name) override {
    AdapterRequest request;
    request.action = AdapterAction::kUnload;
    request.name = name;
    ask<AdapterList>([](const Result<AdapterList>& /*list*/) {}, atom::adapters_v,
                     std::move(request));
  }

  void generate(engines::RolloutRequest request, Done<engines::RolloutResult> done) override {
    ask<engines::RolloutResult>(std::move(done), atom::generate_v, std::move(request));
  }

  void cancel(SampleId id) override { self_->send(device_, atom::cancel_v, id); }

private:
  // A request may wait behind many long ones, so its deadline is a day.
  static constexpr auto kRequestTime = std::chrono::seconds(24 * 60 * 60);
  // Ids of jobs that no other client of the device uses.
  static constexpr std::uint64_t kFirstJob = std::uint64_t{1} << 32U;

  struct Job {
    JobId id;
    std::string tenant;
    LoraSettings lora;
  };

  // Makes the options at the port, and opens a job with them under a new id.
  void start(const std::string& name, std::uint64_t seed, std::optional<JobState> state,
             DoneStatus done) {
    const JobId id{kFirstJob + ++last_job_};
    jobs_.at(name).id = id;
    struct Work {
      LoraSettings lora;
      std::optional<JobState> state;
      Result<engines::JobOptions> options = Status(Errc::kInternal, "not made");
    };
    const auto work = std::make_shared<Work>(Work{jobs_.at(name).lora, std::move(state)});
    run_work_(
        jobs_.at(name).tenant,
        [make = make_options_, seed, work] {
          const TensorMap* tensors = work->state ? &work->state->weights.adapter : nullptr;
          work->options = make(work->lora, seed, tensors);
        },
        [this, id, work, done] {
          if (!work->options.ok()) {
            done(work->options.status());
            return;
          }
          auto opening = std::make_shared<JobOpening>();
          opening->id = id;
          opening->options = std::move(work->options).value();
          opening->make_loss = [](std::span<const engines::TrainSequence>) {
            return Result<std::unique_ptr<engines::TokenLoss>>(
                Status(Errc::kUnimplemented, "the job is trained by passes"));
          };
          ask<JobId>(
              [this, id, work, done](const Result<JobId>& opened) {
                if (opened.ok() && work->state && work->state->optimizer) {
                  restore(id, std::move(*work->state), done);
                } else {
                  done(opened.status());
                }
              },
              atom::open_v, std::shared_ptr<const JobOpening>(std::move(opening)));
        });
  }

  void restore(JobId id, JobState state, const DoneStatus& done) {
    TrainingState training{std::move(state.weights), {std::move(*state.optimizer)}};
    ask<PolicyVersion>([done](const Result<PolicyVersion>& restored) { done(restored.status()); },
                       atom::restore_v, id, std::move(training));
  }

  static Result<ForwardOutcome> to_outcome(const ForwardWork& work, Result<PassOutcome> outcome) {
    if (!outcome.ok()) {
      return outcome.status();
    }
    ForwardOutcome result;
    result.logprobs = std::move(outcome.value().logprobs);
    if (work.backward) {
      result.loss = outcome.value().sums["loss"];
      return result;
    }
    TIDEMILL_ASSIGN_OR_RETURN(engines::TokenSumLoss loss, engines::TokenSumLoss::create(work.loss));
    TIDEMILL_ASSIGN_OR_RETURN(engines::LossSums sums,
                              evaluate_forward(loss, work.sequences, result.logprobs));
    result.loss = sums["loss"];
    return result;
  }

  [[nodiscard]] JobId id_of(const std::string& job) const {
    const auto found = jobs_.find(job);
    return found == jobs_.end() ? JobId{} : found->second.id;
  }

  // Requests something of the device, and passes its reply or its failure to `done`.
  template <class Reply, class DoneReply, class... Message>
  void ask(DoneReply done, Message&&... message) {
    auto handle = self_->request(device_, kRequestTime, std::forward<Message>(message)...);
    const caf::message_id deadline = handle.id();
    handle.then(
        [self = self_, done, deadline](Reply& reply) {
          end_deadline(self, deadline);
          done(Result<Reply>(std::move(reply)));
        },
        [self = self_, done, deadline](const caf::error& error) {
          end_deadline(self, deadline);
          done(Result<Reply>(from_caf_error(error)));
        });
  }

  Self self_;
  DeviceActor device_;
  MakeJobOptions make_options_;
  RunWork run_work_;
  std::string base_model_;
  std::map<std::string, Job> jobs_;
  std::uint64_t last_job_ = 0;
  std::uint64_t versions_ = 0;
};

}  // namespace tidemill::actors::tinker
