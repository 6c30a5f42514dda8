// SPDX-License-Identifier: Apache-2.0
// Fake peers for tests of one actor. Each fake stores the messages that it receives, and replies at
// once or when the test tells it to.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <caf/all.hpp>

#include "actors/commit/run_commit.hpp"
#include "actors/device/handles.hpp"
#include "actors/errors.hpp"
#include "actors/evaluator/handles.hpp"
#include "actors/keeper/handles.hpp"
#include "actors/recorder/handles.hpp"
#include "actors/stream/handles.hpp"
#include "actors/trainer/handles.hpp"
#include "base/check.hpp"

namespace tidemill::test {

/// Replies that a fake is still to deliver. Only the actor that made a promise may deliver it, from
/// one of its message handlers.
struct DeferredReplies {
  std::deque<std::function<void()>> pending;
  std::function<void()> wake;

  void add(std::function<void()> deliver) {
    pending.push_back(std::move(deliver));
    wake();
  }
  void run() {
    for (const auto& deliver : std::exchange(pending, {})) {
      deliver();
    }
  }
};

/// Makes `deferred` wake the actor `handle`, which must call `deferred->run()` when it receives
/// `verb`. Returns `handle`.
template <class Handle, class Verb>
Handle with_deferred_replies(const Handle& handle, const std::shared_ptr<DeferredReplies>& deferred,
                             Verb verb) {
  deferred->wake = [address = caf::actor_cast<caf::actor_addr>(handle), verb] {
    if (const auto actor = caf::actor_cast<caf::actor>(address)) {
      caf::anon_send(actor, verb);
    }
  };
  return handle;
}

/// A request that a fake has received. The test replies to it; the reply arrives once messages are
/// delivered.
template <class Request, class Value>
struct Pending {
  Request request;
  caf::typed_response_promise<Value> promise;
  std::shared_ptr<DeferredReplies> deferred;
  void reply(Value value) {
    deferred->add(
        [p = promise, value = std::move(value)]() mutable { p.deliver(std::move(value)); });
  }
  void fail(const Status& status) {
    deferred->add([p = promise, status]() mutable { p.deliver(actors::to_caf_error(status)); });
  }
};
template <class Request, class Value>
using Inbox = std::deque<Pending<Request, Value>>;

/// Removes the oldest request from an inbox and returns it.
template <class Request, class Value>
Pending<Request, Value> take(Inbox<Request, Value>& inbox) {
  TIDEMILL_CHECK(!inbox.empty()) << "the inbox is empty";
  auto pending = std::move(inbox.front());
  inbox.pop_front();
  return pending;
}

/// Returns the settlement in which all `rows` are done.
inline storage::Settlement settled(const std::vector<storage::HeldRow>& rows) {
  storage::Settlement settlement;
  for (const storage::HeldRow& row : rows) {
    settlement.done.push_back(row.lease.row);
  }
  return settlement;
}

/// A stream that stores lease requests for the test to reply to, and acks if the test wants it. It
/// grants all other requests at once, unless `failure` is set.
struct FakeStream {
  Inbox<actors::LeaseRequest, actors::LeaseReply> leases;
  std::vector<actors::NewGroup> puts;
  std::vector<actors::AckRequest> acks;
  Inbox<actors::AckRequest, storage::Settlement> held_acks;  // while `holds_acks`
  bool holds_acks = false;
  std::vector<actors::LeaseUpdate> nacks;
  std::vector<actors::LeaseUpdate> renewals;
  std::vector<actors::GroupVerdict> verdicts;
  std::vector<std::uint64_t> published;
  std::vector<std::string> released;
  int finished = 0;
  int captured = 0;
  actors::StreamStatus counts;
  Status failure;                            // of puts, acks, nacks and renewals
  std::vector<storage::RefusedRow> refused;  // by acks and renewals

  caf::result<storage::Settlement> settle(const std::vector<storage::HeldRow>& rows) const {
    if (!failure.ok()) {
      return actors::to_caf_error(failure);
    }
    storage::Settlement settlement = settled(rows);
    settlement.refused = refused;
    return settlement;
  }
};

inline actors::StreamActor spawn_fake_stream(caf::actor_system& system,
                                             const std::shared_ptr<FakeStream>& fake) {
  using namespace actors;  // NOLINT(google-build-using-namespace)
  const auto deferred = std::make_shared<DeferredReplies>();
  const auto handle =
      system.spawn([fake, deferred](StreamActor::pointer self) -> StreamActor::behavior_type {
        return {
            [fake](atom::put, NewGroup& group) -> caf::result<storage::Settlement> {
              fake->puts.push_back(std::move(group));
              return fake->settle({});
            },
            [fake](atom::finish) { ++fake->finished; },
            [self, fake, deferred](atom::lease, LeaseRequest& request) {
              auto promise = self->make_response_promise<LeaseReply>();
              fake->leases.push_back({std::move(request), promise, deferred});
              return promise;
            },
            [self, fake, deferred](atom::ack, AckRequest& ack) -> caf::result<storage::Settlement> {
              if (fake->holds_acks) {
                auto promise = self->make_response_promise<storage::Settlement>();
                fake->held_acks.push_back({std::move(ack), promise, deferred});
                return promise;
              }
              fake->acks.push_back(std::move(ack));
              return fake->settle(fake->acks.back().rows);
            },
            [fake](atom::nack, LeaseUpdate& rows) -> caf::result<storage::Settlement> {
              fake->nacks.push_back(rows);
              return fake->settle(rows.rows);
            },
            [fake](atom::renew, LeaseUpdate& rows) -> caf::result<storage::Settlement> {
              fake->renewals.push_back(rows);
              return fake->settle(rows.rows);
            },
            [fake](atom::retire, GroupVerdict& verdict) -> caf::result<storage::Settlement> {
              fake->verdicts.push_back(std::move(verdict));
              return fake->settle({});
            },
            [fake](atom::publish, std::uint64_t step) { fake->published.push_back(step); },
            [fake](atom::release, const std::string& name) { fake->released.push_back(name); },
            [fake](atom::capture) {
              ++fake->captured;
              return StreamCapture{};
            },
            [fake](atom::status) { return fake->counts; },
            [deferred](atom::wake) { deferred->run(); },
        };
      });
  return with_deferred_replies(handle, deferred, atom::wake_v);
}

/// How a fake device answers requests about jobs that it opens itself.
inline caf::error no_jobs() {
  return actors::to_caf_error({Errc::kUnimplemented, "the device opens no training jobs"});
}

/// A device that stores its requests for the test to reply to, except for `capture` and `restore`.
struct FakeDevice {
  Inbox<engines::RolloutRequest, engines::RolloutResult> generations;
  std::vector<SampleId> cancelled;
  caf::strong_actor_ptr listener;  // the last actor that asked for a stream; reset it to end
  actors::DeviceUsage load;
  Inbox<engines::Snapshot, PolicyVersion> loads;
  Inbox<actors::TrainRequest, actors::TrainOutcome> jobs;
  Inbox<actors::AdapterRequest, actors::AdapterList> adapter_requests;
  std::vector<actors::TrainingState> restored;
  actors::OptimizerState optimizer;
  int captured = 0;
};

inline actors::DeviceActor spawn_fake_device(caf::actor_system& system,
                                             const std::shared_ptr<FakeDevice>& fake) {
  using namespace actors;  // NOLINT(google-build-using-namespace)
  const auto deferred = std::make_shared<DeferredReplies>();
  const auto handle =
      system.spawn([fake, deferred](DeviceActor::pointer self) -> DeviceActor::behavior_type {
        return {
            [self, fake, deferred](atom::generate, engines::RolloutRequest& request) {
              auto promise = self->make_response_promise<engines::RolloutResult>();
              fake->generations.push_back({std::move(request), promise, deferred});
              return promise;
            },
            [self, fake, deferred](atom::stream, engines::RolloutRequest& request) {
              fake->listener = self->current_sender();
              auto promise = self->make_response_promise<engines::RolloutResult>();
              fake->generations.push_back({std::move(request), promise, deferred});
              return promise;
            },
            [fake](atom::status) { return fake->load; },
            [fake](atom::cancel, SampleId id) { fake->cancelled.push_back(id); },
            [self, fake, deferred](atom::load, engines::Snapshot& snapshot) {
              auto promise = self->make_response_promise<PolicyVersion>();
              fake->loads.push_back({std::move(snapshot), promise, deferred});
              return promise;
            },
            [self, fake, deferred](atom::adapters, AdapterRequest& request) {
              auto promise = self->make_response_promise<AdapterList>();
              fake->adapter_requests.push_back({std::move(request), promise, deferred});
              return promise;
            },
            [self, fake, deferred](atom::train, TrainRequest& job) {
              auto promise = self->make_response_promise<TrainOutcome>();
              fake->jobs.push_back({std::move(job), promise, deferred});
              return promise;
            },
            [fake](atom::capture) {
              ++fake->captured;
              return fake->optimizer;
            },
            [fake](atom::restore, TrainingState& saved) {
              const PolicyVersion version = saved.weights.version;
              fake->restored.push_back(std::move(saved));
              return version;
            },
            [](atom::open, const std::shared_ptr<const JobOpening>&) -> caf::result<JobId> {
              return no_jobs();
            },
            [](atom::close, JobId) {},
            [](atom::pass, JobId, const std::shared_ptr<const PassRequest>&)
                -> caf::result<PassOutcome> { return no_jobs(); },
            [](atom::step, JobId, const std::shared_ptr<const engines::OptimStep>&)
                -> caf::result<engines::UpdateReport> { return no_jobs(); },
            [](atom::save, JobId, PolicyVersion) -> caf::result<engines::Snapshot> {
              return no_jobs();
            },
            [](atom::train, JobId, const TrainRequest&) -> caf::result<TrainOutcome> {
              return no_jobs();
            },
            [](atom::capture, JobId) -> caf::result<OptimizerState> { return no_jobs(); },
            [](atom::restore, JobId, const TrainingState&) -> caf::result<PolicyVersion> {
              return no_jobs();
            },
            [deferred](atom::worked) { deferred->run(); },
        };
      });
  return with_deferred_replies(handle, deferred, atom::worked_v);
}

/// A version keeper that accepts every version, unless `publish_failure` is set, and stores
/// admission requests for the test to reply to.
struct FakeKeeper {
  Inbox<actors::AdmissionRequest, actors::Admission> admissions;
  std::vector<storage::SlotChanges> changes;
  std::vector<engines::Snapshot> published;
  std::vector<std::uint64_t> waits;
  std::vector<std::uint64_t> finished;
  Status publish_failure;
};

inline actors::KeeperActor spawn_fake_keeper(caf::actor_system& system,
                                             const std::shared_ptr<FakeKeeper>& fake) {
  using namespace actors;  // NOLINT(google-build-using-namespace)
  const auto deferred = std::make_shared<DeferredReplies>();
  const auto handle =
      system.spawn([fake, deferred](KeeperActor::pointer self) -> KeeperActor::behavior_type {
        return {
            [](atom::join, const DeviceJoin& request) { return DeviceStatus{request.name}; },
            [](atom::leave, const std::string& name) { return DeviceStatus{name}; },
            [self, fake, deferred](atom::admit, AdmissionRequest& request) {
              auto promise = self->make_response_promise<Admission>();
              fake->admissions.push_back({request, promise, deferred});
              return promise;
            },
            [fake](atom::record, const storage::SlotChanges& c) { fake->changes.push_back(c); },
            [fake](atom::publish, engines::Snapshot& snapshot) -> caf::result<PolicyVersion> {
              if (!fake->publish_failure.ok()) {
                return to_caf_error(fake->publish_failure);
              }
              fake->published.push_back(snapshot);
              return snapshot.version;
            },
            [fake](atom::waits, std::uint64_t step) {
              fake->waits.push_back(step);
              return PolicyVersion{0, 0, step};
            },
            [fake](atom::finish, std::uint64_t groups) { fake->finished.push_back(groups); },
            [](atom::status) { return KeeperStatus{}; },
            [deferred](atom::wake) { deferred->run(); },
        };
      });
  return with_deferred_replies(handle, deferred, atom::wake_v);
}

/// A recorder that keeps records in memory, unless `failure` is set.
struct FakeRecorder {
  std::vector<actors::StepRecord> records;
  actors::RecordMarks marks;
  Status failure;
};

inline actors::RecorderActor spawn_fake_recorder(caf::actor_system& system,
                                                 const std::shared_ptr<FakeRecorder>& fake) {
  using namespace actors;  // NOLINT(google-build-using-namespace)
  return system.spawn([fake](RecorderActor::pointer) -> RecorderActor::behavior_type {
    return {
        [fake](atom::record, StepRecord& record) -> caf::result<RecordMarks> {
          if (!fake->failure.ok()) {
            return to_caf_error(fake->failure);
          }
          fake->records.push_back(std::move(record));
          ++fake->marks.metrics_bytes;
          return fake->marks;
        },
        [fake](atom::capture) { return fake->marks; },
        [](atom::worked) {},
    };
  });
}

/// An evaluator that stores its requests for the test to reply to.
struct FakeEvaluator {
  Inbox<std::uint64_t, actors::EvalReport> requests;
  int stopped = 0;
};

inline actors::EvaluatorActor spawn_fake_evaluator(caf::actor_system& system,
                                                   const std::shared_ptr<FakeEvaluator>& fake) {
  using namespace actors;  // NOLINT(google-build-using-namespace)
  const auto deferred = std::make_shared<DeferredReplies>();
  const auto handle =
      system.spawn([fake, deferred](EvaluatorActor::pointer self) -> EvaluatorActor::behavior_type {
        return {
            [self, fake, deferred](atom::start, std::uint64_t step) {
              auto promise = self->make_response_promise<EvalReport>();
              fake->requests.push_back({step, promise, deferred});
              return promise;
            },
            [fake](atom::stop) { ++fake->stopped; },
            [deferred](atom::worked) { deferred->run(); },
        };
      });
  return with_deferred_replies(handle, deferred, atom::worked_v);
}

/// The run listener that a trainer reports to.
struct FakeRunListener {
  std::vector<actors::RunSummary> summaries;
};

inline actors::RunListenerActor spawn_fake_run_listener(
    caf::actor_system& system, const std::shared_ptr<FakeRunListener>& fake) {
  using namespace actors;  // NOLINT(google-build-using-namespace)
  return system.spawn([fake](RunListenerActor::pointer) -> RunListenerActor::behavior_type {
    return {[fake](atom::finish, RunSummary& summary) {
      fake->summaries.push_back(std::move(summary));
    }};
  });
}

/// Keeps the last commit in memory. `save` fails while `failure` is set, `load` while
/// `load_failure` is.
class MemoryCommits final : public actors::CommitStore {
public:
  [[nodiscard]] std::optional<std::uint64_t> last_step() const override {
    return last.has_value() ? std::optional<std::uint64_t>{last->weights.version.step}
                            : std::nullopt;
  }
  Status save(const actors::RunCommit& commit) override {
    ++saves;
    if (!failure.ok()) {
      return failure;
    }
    last = commit;
    return {};
  }
  Result<std::optional<actors::RunCommit>> load() override {
    if (!load_failure.ok()) {
      return load_failure;
    }
    return last;
  }

  int saves = 0;
  Status failure;
  Status load_failure;
  std::optional<actors::RunCommit> last;
};

}  // namespace tidemill::test
