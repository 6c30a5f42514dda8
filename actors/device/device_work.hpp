// SPDX-License-Identifier: Apache-2.0
// What a device does at its port: it runs the commands of the actor and the iterations of the
// engines. Private to the device.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "actors/device/job_work.hpp"
#include "actors/device/outcomes.hpp"
#include "actors/device/spawn.hpp"
#include "engines/executor/executor.hpp"

namespace tidemill::actors {

/// The engines of a device, and the requests that they work on. Shared between the actor and the
/// work at the port, so that it outlives a terminated actor.
///
/// Threads: only the work calls the member functions. The actor reads and clears the public data
/// between two pieces of work, and may call `interrupt` at any time.
class DeviceWork final : public engines::RolloutSink {
public:
  explicit DeviceWork(DeviceDeps deps);

  void on_rollout(engines::RolloutResult result) override;
  void on_tokens(const engines::RolloutTokens& tokens) override;

  /// Each of these functions leaves one outcome for the ticket, now or in a later iteration.
  void submit(Ticket ticket, engines::RolloutRequest request);
  /// As `submit`, and collects the tokens in `token_events`.
  void stream(Ticket ticket, engines::RolloutRequest request);
  void load(Ticket ticket, engines::Snapshot snapshot);
  void change_adapters(Ticket ticket, const AdapterRequest& request);
  void open(Ticket ticket, const JobOpening& opening);
  void train(Ticket ticket, JobId id, TrainRequest request);
  void pass(Ticket ticket, JobId id, std::shared_ptr<const PassRequest> request);
  void step(Ticket ticket, JobId id, std::shared_ptr<const engines::OptimStep> step);
  void save(Ticket ticket, JobId id, PolicyVersion version);
  void capture(Ticket ticket, JobId id);
  void restore(Ticket ticket, JobId id, const TrainingState& saved);

  void cancel(SampleId id) { deps_.rollout->cancel(id); }
  void close(JobId id);

  /// Runs one iteration, if there is anything to do. Returns the virtual time that it takes.
  [[nodiscard]] Duration iterate();
  /// Makes the iteration that runs end after the current unit, because commands wait.
  void interrupt() noexcept { interrupted_ = true; }
  void allow_long_iterations() noexcept { interrupted_ = false; }
  [[nodiscard]] WorkPort& port() const noexcept { return *deps_.port; }
  [[nodiscard]] bool trains() const noexcept { return deps_.train != nullptr; }
  [[nodiscard]] bool serves_adapters() const noexcept { return deps_.adapters != nullptr; }
  [[nodiscard]] bool opens_jobs() const noexcept { return static_cast<bool>(deps_.open_job); }

  std::vector<std::pair<Ticket, TokenEvent>> token_events;
  Outcomes outcomes;
  Status engine_status;  // a failure ends the device
  DeviceUsage usage;
  bool more = false;  // there is a next iteration

private:
  struct Job {
    std::unique_ptr<engines::TrainingJob> owned;  // null for job 0
    engines::TrainingJob* job = nullptr;
    LossFactory make_loss;
    std::unique_ptr<JobWork> work;  // null: no request is pending
    Ticket ticket = 0;              // of that request
  };

  void give_up_requests(const Status& why);
  [[nodiscard]] Status change_adapters(const AdapterRequest& request) const;
  [[nodiscard]] Result<JobId> open(const JobOpening& opening);
  [[nodiscard]] Result<Job*> find_job(JobId id);
  template <class Value, class MakeWork>
  void start(Ticket ticket, JobId id, const MakeWork& make_work);
  void advance(Job& job);
  void fail(Job& job, const Status& failure);
  void take_results(const engines::Iteration& iteration);
  void count(const engines::Iteration& iteration);

  DeviceDeps deps_;
  engines::Executor executor_;
  std::map<JobId, Job> jobs_;
  std::map<SampleId, Ticket> generating_;
  std::set<Ticket> streaming_;     // those of `generating_` whose tokens are sent
  std::uint32_t incarnation_ = 0;  // of the newest weights that generate, or will
  std::uint64_t num_iterations_ = 0;
  std::atomic<bool> interrupted_ = false;
};

}  // namespace tidemill::actors
