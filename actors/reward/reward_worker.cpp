// SPDX-License-Identifier: Apache-2.0
// The reward worker. Work at the port decodes the responses, submits them to the engine and steps
// it. While it is there, only that work may use the engine, and rows that are leased meanwhile
// wait. A sample that cannot be scored is given back with the reason. The stream delivers it again,
// and fails it after too many failures.
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include <caf/all.hpp>

#include "actors/errors.hpp"
#include "actors/reward/spawn.hpp"
#include "actors/stream/sample_columns.hpp"
#include "actors/stream/worker_leases.hpp"

namespace tidemill::actors {
namespace {

using engines::RewardRequest;
using engines::RewardResult;

constexpr Duration kReportPause = std::chrono::seconds(10);

Result<RewardRequest> read_request(const storage::LeasedRow& row, const DecodeText& decode) {
  RewardRequest request;
  request.id = row.row.id;
  TIDEMILL_ASSIGN_OR_RETURN(const Buffer prompt, find_cell(row, SampleColumn::kPrompt));
  TIDEMILL_ASSIGN_OR_RETURN(const Buffer answer, find_cell(row, SampleColumn::kReferenceAnswer));
  TIDEMILL_ASSIGN_OR_RETURN(const Buffer fields, find_cell(row, SampleColumn::kFields));
  TIDEMILL_ASSIGN_OR_RETURN(const auto ids,
                            read_cell<std::int32_t>(row, SampleColumn::kResponseIds));
  request.prompt = cell_text(prompt);
  request.reference_answer = cell_text(answer);
  request.fields = cell_text(fields);
  request.response = decode(ids);
  return request;
}

// Shared with the work at the port, so that it outlives the actor.
struct PortWork : engines::RewardSink {
  void on_reward(RewardResult result) override { results.push_back(std::move(result)); }

  // Submits the rows and steps the engine once. Runs at the port, because decoding is not free.
  void iterate(Duration patience) {
    for (const storage::LeasedRow& row : std::exchange(rows, {})) {
      auto request = read_request(row, decode);
      const Status submitted =
          request.ok() ? engine->submit(std::move(request).value(), *this) : request.status();
      if (submitted.code() == Errc::kUnavailable) {
        engine_is_gone = true;
        status = submitted;
        return;
      }
      if (!submitted.ok()) {
        results.push_back({row.row.id, 0.0, submitted.message(), {}});
      }
    }
    if (engine->has_work()) {
      status = engine->step(patience);
    }
  }

  std::shared_ptr<engines::RewardEngine> engine;
  DecodeText decode;
  std::vector<storage::LeasedRow> rows;  // that are not submitted yet
  std::vector<RewardResult> results;
  Status status;
  bool engine_is_gone = false;  // the engine accepts no samples
};

struct RewardWorkerState {
  static inline const char* name = "reward_worker";
  RewardWorkerState() = default;  // not an aggregate: CAF would build it from `self`

  RewardWorkerDeps deps;
  std::shared_ptr<PortWork> port_work;
  std::map<SampleId, storage::Lease> held;
  // Submissions without a result, by sample. A sample has two if the lease of its row was lost and
  // the worker has leased the row again.
  std::map<SampleId, std::uint32_t> at_engine;
  Duration lease_time{0};
  std::vector<storage::LeasedRow> waiting;  // leased while work was at the port
  bool working = false;
  bool leasing = false;
  bool ended = false;
  bool draining = false;
  bool has_scored = false;
  std::uint32_t unscored = 0;    // deliveries without a reward in a row
  std::uint32_t unreported = 0;  // deliveries without a reward since the last log line
  std::optional<TimePoint> reported;
};

using Self = RewardWorkerActor::stateful_pointer<RewardWorkerState>;

void lease_more(Self self);

// Ends the worker. Nothing may be requested afterwards, because an actor that waits for a reply
// does not end.
void end(Self self, const Status& why) {
  self->state.ended = true;
  self->quit(to_caf_error(why));
}

// Logs how many samples had no reward and why the last one had none. A failing program may fail
// every sample, so there is at most one line per `kReportPause`.
void report(Self self, std::uint32_t num_refused, const std::string& last_reason) {
  auto& state = self->state;
  state.unreported += num_refused;
  const TimePoint now = self->clock().now();
  if (num_refused == 0 || !state.deps.log ||
      (state.reported.has_value() && now - *state.reported < kReportPause)) {
    return;
  }
  state.deps.log(
      state.deps.name + ": " + std::to_string(state.unreported) +
      (state.unreported == 1 ? " sample" : " samples") +
      " without a reward, delivered up to stream.max_deliveries times; the last: " + last_reason);
  state.reported = now;
  state.unreported = 0;
}

// Notes a result of the engine. Returns whether another submission of the sample is without one.
bool has_another_submission(RewardWorkerState& state, SampleId id) {
  const auto it = state.at_engine.find(id);
  if (it == state.at_engine.end()) {
    return false;
  }
  if (--it->second == 0) {
    state.at_engine.erase(it);
    return false;
  }
  return true;
}

// Acknowledges the rows that have a reward, gives back all others, and then asks for more. Returns
// false if the worker has ended because too many samples in a row had no reward.
bool settle(Self self, const std::vector<RewardResult>& results) {
  auto& state = self->state;
  AckRequest scored{task_id(SampleTask::kReward), state.deps.name, {}};
  std::map<std::string, LeaseUpdate> refused;  // by reason
  std::uint32_t num_refused = 0;
  std::string last_reason;
  for (const RewardResult& result : results) {
    const bool submitted_again = has_another_submission(state, result.id);
    const bool has_reward = result.error.empty() && engines::is_reward(result.reward);
    const auto it = state.held.find(result.id);
    if (it == state.held.end() || (submitted_again && !has_reward)) {
      continue;  // the lease was lost in the meantime: no delivery is charged with this failure
    }
    const storage::Lease lease = it->second;
    state.held.erase(it);
    if (has_reward) {
      state.has_scored = true;
      state.unscored = 0;
      std::vector<double> rewards{result.reward};
      rewards.insert(rewards.end(), result.parts.begin(), result.parts.end());
      scored.rows.push_back({lease, {make_cell(SampleColumn::kReward, std::move(rewards))}, {}});
      continue;
    }
    const std::string reason =
        "reward: " + (!result.error.empty()          ? result.error
                      : std::isfinite(result.reward) ? "beyond 1e30"
                                                     : "not a finite number");
    if (++state.unscored >= state.deps.max_unscored) {
      end(self, invalid_argument(std::to_string(state.unscored) +
                                 " samples in a row without a reward; the last: " + reason));
      return false;
    }
    auto [entry, fresh] = refused.try_emplace(
        reason,
        LeaseUpdate{
            task_id(SampleTask::kReward), state.deps.name, {}, storage::Release::kFailed, reason});
    entry->second.rows.push_back({lease});
    ++num_refused;
    last_reason = reason;
  }
  report(self, num_refused, last_reason);
  const auto go_on = [self](const storage::Settlement&) { lease_more(self); };
  const auto retry = [self](const caf::error&) { try_again_later(self); };
  if (!scored.rows.empty()) {
    self->request(state.deps.stream, kReplyMargin, atom::ack_v, std::move(scored))
        .then(go_on, retry);
  }
  for (auto& [reason, rows] : refused) {
    self->request(state.deps.stream, kReplyMargin, atom::nack_v, std::move(rows))
        .then(go_on, retry);
  }
  return true;
}

// Has the port submit the waiting rows and step the engine. No work may be at the port.
void work(Self self) {
  auto& state = self->state;
  state.port_work->rows = std::exchange(state.waiting, {});
  if (state.port_work->rows.empty() && !state.port_work->engine->has_work()) {
    return;
  }
  state.working = true;
  state.deps.port->run(
      [port_work = state.port_work, patience = state.deps.patience] {
        port_work->iterate(patience);
        return Duration{0};
      },
      caf::actor_cast<caf::strong_actor_ptr>(self), caf::make_message(atom::worked_v));
}

void take(Self self, const std::vector<storage::LeasedRow>& rows) {
  auto& state = self->state;
  for (const storage::LeasedRow& row : rows) {
    state.held.insert_or_assign(row.row.id, row.lease);
    ++state.at_engine[row.row.id];
    state.waiting.push_back(row);
  }
  if (!state.working) {
    work(self);
  }
  lease_more(self);
}

// Leaves the rows that the engine has not got yet.
void drain_worker(Self self) {
  auto& state = self->state;
  state.draining = true;
  const auto left = std::exchange(state.waiting, {});
  for (const storage::LeasedRow& row : left) {
    state.held.erase(row.row.id);
    if (--state.at_engine[row.row.id] == 0) {
      state.at_engine.erase(row.row.id);
    }
  }
  leave_rows(self, task_id(SampleTask::kReward), left);
  lease_more(self);
}

void lease_more(Self self) {
  lease_more_rows(self, task_id(SampleTask::kReward),
                  [self](const std::vector<storage::LeasedRow>& rows) { take(self, rows); });
}

void on_worked(Self self) {
  auto& state = self->state;
  PortWork& port_work = *state.port_work;
  state.working = false;
  if (!port_work.status.ok()) {
    // An engine that has never scored a sample would give up again after a restart. One that could
    // not be made may well be made later, so it is for the supervisor to limit the restarts.
    const bool repeats = !state.has_scored && !port_work.engine_is_gone;
    end(self, repeats ? invalid_argument(port_work.status.message()) : port_work.status);
    return;
  }
  if (settle(self, std::exchange(port_work.results, {}))) {
    work(self);
  }
}

RewardWorkerActor::behavior_type reward_worker(Self self, RewardWorkerDeps deps) {
  self->state.port_work = std::make_shared<PortWork>();
  self->state.port_work->engine = deps.engine;
  self->state.port_work->decode = deps.decode;
  self->state.deps = std::move(deps);
  self->send(self, atom::wake_v);
  self->send(self, atom::renew_v);
  return {
      [self](atom::wake) { lease_more(self); },
      [self](atom::drain) { drain_worker(self); },
      [self](atom::renew) {
        // Without renewal, the rows in the queue of a slow program would be delivered again.
        renew_held_leases(self, task_id(SampleTask::kReward), [](SampleId) {});
      },
      [self](atom::worked) { on_worked(self); },
  };
}

}  // namespace

RewardWorkerActor spawn_reward_worker(caf::actor_system& system, RewardWorkerDeps deps) {
  return system.spawn(reward_worker, std::move(deps));
}

}  // namespace tidemill::actors
