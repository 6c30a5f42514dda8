// SPDX-License-Identifier: Apache-2.0
// Peers of an actor under test: each keeps what it was told, and answers at once or when the test
// says so.
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

/// What a fake is still to do: a promise can be kept by its actor alone, while it runs.
struct Errands {
  std::deque<std::function<void()>> todo;
  std::function<void()> wake;

  void add(std::function<void()> errand) {
    todo.push_back(std::move(errand));
    wake();
  }
  void run() {
    for (const auto& errand : std::exchange(todo, {})) {
      errand();
    }
  }
};

/// Has `errands` run by `handle`, which does so at `verb`.
template <class Handle, class Verb>
Handle runs_errands(const Handle& handle, const std::shared_ptr<Errands>& errands, Verb verb) {
  errands->wake = [address = caf::actor_cast<caf::actor_addr>(handle), verb] {
    if (const auto actor = caf::actor_cast<caf::actor>(address)) {
      caf::anon_send(actor, verb);
    }
  };
  return handle;
}

/// A request that waits for the test's answer, which arrives once messages are delivered.
template <class Request, class Answer>
struct Pending {
  Request request;
  caf::typed_response_promise<Answer> promise;
  std::shared_ptr<Errands> errands;
  void answer(Answer value) {
    errands->add(
        [p = promise, value = std::move(value)]() mutable { p.deliver(std::move(value)); });
  }
  void fail(const Status& status) {
    errands->add([p = promise, status]() mutable { p.deliver(actors::to_caf_error(status)); });
  }
};
template <class Request, class Answer>
using Inbox = std::deque<Pending<Request, Answer>>;

/// Takes the oldest request out of an inbox.
template <class Request, class Answer>
Pending<Request, Answer> take(Inbox<Request, Answer>& inbox) {
  TIDEMILL_CHECK(!inbox.empty()) << "nothing was asked";
  auto pending = std::move(inbox.front());
  inbox.pop_front();
  return pending;
}

/// Answers what a `Settlement` of everything asked for would be.
inline storage::Settlement settled(const std::vector<storage::LeaseToken>& rows) {
  storage::Settlement settlement;
  for (const storage::LeaseToken& row : rows) {
    settlement.done.push_back(row.row);
  }
  return settlement;
}

/// A stream that leases nothing by itself. Everything but leases is granted at once, unless
/// `failure` is set.
struct FakeStream {
  Inbox<actors::LeaseRequest, actors::LeaseReply> leases;
  std::vector<actors::NewGroup> puts;
  std::vector<actors::Completion> acks;
  std::vector<actors::Return> nacks;
  std::vector<actors::Return> renewals;
  std::vector<actors::GroupVerdict> verdicts;
  std::vector<std::uint64_t> published;
  std::vector<std::string> released;
  int finished = 0;
  int captured = 0;
  actors::StreamStatus counts;
  Status failure;                            // of puts, acks, nacks and renewals
  std::vector<storage::RefusedRow> refused;  // by acks and renewals

  caf::result<storage::Settlement> settle(std::vector<storage::LeaseToken> rows) const {
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
  const auto errands = std::make_shared<Errands>();
  const auto handle =
      system.spawn([fake, errands](StreamActor::pointer self) -> StreamActor::behavior_type {
        return {
            [fake](atom::put, NewGroup& group) -> caf::result<storage::Settlement> {
              fake->puts.push_back(std::move(group));
              return fake->settle({});
            },
            [fake](atom::finish) { ++fake->finished; },
            [self, fake, errands](atom::lease, LeaseRequest& request) {
              auto promise = self->make_response_promise<LeaseReply>();
              fake->leases.push_back({std::move(request), promise, errands});
              return promise;
            },
            [fake](atom::ack, Completion& completion) -> caf::result<storage::Settlement> {
              std::vector<storage::LeaseToken> rows;
              for (const storage::FinishedRow& row : completion.rows) {
                rows.push_back(row.lease);
              }
              fake->acks.push_back(std::move(completion));
              return fake->settle(rows);
            },
            [fake](atom::nack, Return& rows) -> caf::result<storage::Settlement> {
              fake->nacks.push_back(rows);
              return fake->settle(rows.rows);
            },
            [fake](atom::renew, Return& rows) -> caf::result<storage::Settlement> {
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
              return StreamImage{};
            },
            [fake](atom::status) { return fake->counts; },
            [errands](atom::wake) { errands->run(); },
        };
      });
  return runs_errands(handle, errands, atom::wake_v);
}

/// A device that answers nothing by itself.
struct FakeDevice {
  Inbox<engines::RolloutRequest, engines::RolloutResult> generations;
  std::vector<SampleId> cancelled;
  Inbox<engines::Snapshot, PolicyVersion> loads;
  Inbox<actors::TrainJob, actors::TrainOutcome> jobs;
  actors::OptimizerState optimizer;
  int captured = 0;
};

inline actors::DeviceActor spawn_fake_device(caf::actor_system& system,
                                             const std::shared_ptr<FakeDevice>& fake) {
  using namespace actors;  // NOLINT(google-build-using-namespace)
  const auto errands = std::make_shared<Errands>();
  const auto handle =
      system.spawn([fake, errands](DeviceActor::pointer self) -> DeviceActor::behavior_type {
        return {
            [self, fake, errands](atom::generate, engines::RolloutRequest& request) {
              auto promise = self->make_response_promise<engines::RolloutResult>();
              fake->generations.push_back({std::move(request), promise, errands});
              return promise;
            },
            [fake](atom::cancel, SampleId id) { fake->cancelled.push_back(id); },
            [self, fake, errands](atom::load, engines::Snapshot& snapshot) {
              auto promise = self->make_response_promise<PolicyVersion>();
              fake->loads.push_back({std::move(snapshot), promise, errands});
              return promise;
            },
            [self, fake, errands](atom::train, TrainJob& job) {
              auto promise = self->make_response_promise<TrainOutcome>();
              fake->jobs.push_back({std::move(job), promise, errands});
              return promise;
            },
            [fake](atom::capture) {
              ++fake->captured;
              return fake->optimizer;
            },
            [errands](atom::worked) { errands->run(); },
        };
      });
  return runs_errands(handle, errands, atom::worked_v);
}

/// A version keeper that takes every version and answers admissions when the test says so.
struct FakeKeeper {
  Inbox<actors::AdmissionRequest, actors::Admission> admissions;
  std::vector<storage::PlaceChanges> changes;
  std::vector<engines::Snapshot> published;
  std::vector<std::uint64_t> waits;
  std::vector<std::uint64_t> finished;
  Status publish_failure;
};

inline actors::KeeperActor spawn_fake_keeper(caf::actor_system& system,
                                             const std::shared_ptr<FakeKeeper>& fake) {
  using namespace actors;  // NOLINT(google-build-using-namespace)
  const auto errands = std::make_shared<Errands>();
  const auto handle =
      system.spawn([fake, errands](KeeperActor::pointer self) -> KeeperActor::behavior_type {
        return {
            [self, fake, errands](atom::admit, AdmissionRequest& request) {
              auto promise = self->make_response_promise<Admission>();
              fake->admissions.push_back({request, promise, errands});
              return promise;
            },
            [fake](atom::record, const storage::PlaceChanges& c) { fake->changes.push_back(c); },
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
            [errands](atom::wake) { errands->run(); },
        };
      });
  return runs_errands(handle, errands, atom::wake_v);
}

/// A recorder that keeps records in memory; a failure may be set.
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

/// An evaluator that answers when the test says so.
struct FakeEvaluator {
  Inbox<std::uint64_t, actors::EvalReport> asked;
};

inline actors::EvaluatorActor spawn_fake_evaluator(caf::actor_system& system,
                                                   const std::shared_ptr<FakeEvaluator>& fake) {
  using namespace actors;  // NOLINT(google-build-using-namespace)
  const auto errands = std::make_shared<Errands>();
  const auto handle =
      system.spawn([fake, errands](EvaluatorActor::pointer self) -> EvaluatorActor::behavior_type {
        return {
            [self, fake, errands](atom::start, std::uint64_t step) {
              auto promise = self->make_response_promise<EvalReport>();
              fake->asked.push_back({step, promise, errands});
              return promise;
            },
            [errands](atom::worked) { errands->run(); },
        };
      });
  return runs_errands(handle, errands, atom::worked_v);
}

/// Whom a trainer reports to.
struct FakeOwner {
  std::vector<actors::RunSummary> summaries;
};

inline actors::RunOwnerActor spawn_fake_owner(caf::actor_system& system,
                                              const std::shared_ptr<FakeOwner>& fake) {
  using namespace actors;  // NOLINT(google-build-using-namespace)
  return system.spawn([fake](RunOwnerActor::pointer) -> RunOwnerActor::behavior_type {
    return {[fake](atom::finish, RunSummary& summary) {
      fake->summaries.push_back(std::move(summary));
    }};
  });
}

/// Commits in memory. Saves fail while `failure` is set.
class MemoryCommits final : public actors::CommitStore {
public:
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
