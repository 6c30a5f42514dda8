// SPDX-License-Identifier: Apache-2.0
// The reward worker. The engine belongs to the port while a piece of work is out; what is leased
// meanwhile waits. A sample that cannot be scored is given back with its reason: the stream
// delivers it again, and fails it after too many deliveries.
#include <cmath>
#include <map>
#include <utility>

#include <caf/all.hpp>

#include "actors/errors.hpp"
#include "actors/reward/spawn.hpp"
#include "actors/stream/lease_renewal.hpp"
#include "actors/stream/sample_columns.hpp"

namespace tidemill::actors {
namespace {

using engines::RewardRequest;
using engines::RewardResult;

constexpr Duration kRetryDelay = std::chrono::milliseconds(100);
constexpr Duration kAnswerMargin = std::chrono::seconds(30);

// What the work at the port touches; shared with it, so that it survives the actor's death.
struct Bench : engines::RewardSink {
  void on_reward(RewardResult result) override { results.push_back(std::move(result)); }

  std::shared_ptr<engines::RewardEngine> engine;
  std::vector<RewardResult> results;
  Status status;
};

struct RewardWorkerState {
  static inline const char* name = "reward_worker";
  RewardWorkerState() = default;  // not an aggregate: CAF would build it from `self`

  RewardWorkerDeps deps;
  std::shared_ptr<Bench> bench;
  std::map<SampleId, storage::LeaseToken> held;
  Duration lease_time{0};
  std::vector<RewardRequest> waiting;  // leased while the engine was at the port
  bool working = false;
  bool leasing = false;
  bool ended = false;
  bool has_scored = false;
  std::uint32_t unscored = 0;  // deliveries in a row
};

using Self = RewardWorkerActor::stateful_pointer<RewardWorkerState>;

void lease_more(Self self);

void try_again_later(Self self) {
  self->delayed_send(self, kRetryDelay, atom::wake_v);
}

Result<RewardRequest> read_request(const storage::LeasedRow& row, const DecodeText& decode) {
  RewardRequest request;
  request.id = row.row.id;
  TIDEMILL_ASSIGN_OR_RETURN(const Buffer prompt, find_cell(row, SampleColumn::kPrompt));
  TIDEMILL_ASSIGN_OR_RETURN(const Buffer answer, find_cell(row, SampleColumn::kAnswer));
  TIDEMILL_ASSIGN_OR_RETURN(const Buffer fields, find_cell(row, SampleColumn::kFields));
  TIDEMILL_ASSIGN_OR_RETURN(const auto ids,
                            read_cell<std::int32_t>(row, SampleColumn::kResponseIds));
  request.prompt = cell_text(prompt);
  request.answer = cell_text(answer);
  request.fields = cell_text(fields);
  request.response = decode(ids);
  return request;
}

// Tells the stream what is decided about each row, then asks for more.
void settle(Self self, const std::vector<RewardResult>& results) {
  auto& state = self->state;
  Completion scored{task_id(SampleTask::kReward), state.deps.name, {}};
  std::map<std::string, Return> refused;  // by reason
  for (const RewardResult& result : results) {
    const auto it = state.held.find(result.id);
    if (it == state.held.end()) {
      continue;  // the lease was lost meanwhile
    }
    const storage::LeaseToken lease = it->second;
    state.held.erase(it);
    if (result.error.empty() && std::isfinite(result.reward)) {
      state.has_scored = true;
      state.unscored = 0;
      scored.rows.push_back(
          {lease, {make_cell(SampleColumn::kReward, std::vector<double>{result.reward})}, {}});
      continue;
    }
    const std::string reason =
        "reward: " + (result.error.empty() ? "not a finite number" : result.error);
    if (++state.unscored >= state.deps.max_unscored) {
      self->quit(to_caf_error(
          invalid_argument(std::to_string(state.unscored) +
                           " samples in a row without a reward; the last: " + reason)));
      return;
    }
    auto [entry, fresh] = refused.try_emplace(
        reason, Return{task_id(SampleTask::kReward), state.deps.name, {}, reason});
    entry->second.rows.push_back(lease);
  }
  const auto go_on = [self](const storage::Settlement&) { lease_more(self); };
  const auto retry = [self](const caf::error&) { try_again_later(self); };
  if (!scored.rows.empty()) {
    self->request(state.deps.stream, kAnswerMargin, atom::ack_v, std::move(scored))
        .then(go_on, retry);
  }
  for (auto& [reason, rows] : refused) {
    self->request(state.deps.stream, kAnswerMargin, atom::nack_v, std::move(rows))
        .then(go_on, retry);
  }
}

// Hands what was leased to the engine and starts the next piece of work. The engine must be here.
void work(Self self) {
  auto& state = self->state;
  std::vector<RewardResult> refused;
  for (RewardRequest& request : std::exchange(state.waiting, {})) {
    const SampleId id = request.id;
    const Status status = state.bench->engine->submit(std::move(request), *state.bench);
    if (!status.ok()) {
      refused.push_back({id, 0.0, status.message()});
    }
  }
  settle(self, refused);
  if (!state.bench->engine->has_work()) {
    return;
  }
  state.working = true;
  state.deps.port->run(
      [bench = state.bench, patience = state.deps.patience] {
        bench->status = bench->engine->step(patience);
        return Duration{0};
      },
      caf::actor_cast<caf::strong_actor_ptr>(self), caf::make_message(atom::worked_v));
}

void on_lease(Self self, const LeaseReply& reply) {
  auto& state = self->state;
  state.leasing = false;
  state.ended = reply.ended;
  if (!reply.rows.empty()) {
    state.lease_time = reply.lease_time;
  }
  std::vector<RewardResult> refused;
  for (const storage::LeasedRow& row : reply.rows) {
    state.held.insert_or_assign(row.row.id, row.lease);
    auto request = read_request(row, state.deps.decode);
    if (request.ok()) {
      state.waiting.push_back(std::move(request).value());
    } else {
      refused.push_back({row.row.id, 0.0, request.status().message()});
    }
  }
  settle(self, refused);
  if (!state.working) {
    work(self);
  }
  lease_more(self);
}

void lease_more(Self self) {
  auto& state = self->state;
  const auto held = static_cast<std::uint32_t>(state.held.size());
  if (state.leasing || state.ended || held >= state.deps.max_in_flight) {
    return;
  }
  state.leasing = true;
  LeaseRequest request;
  request.task = task_id(SampleTask::kReward);
  request.consumer = state.deps.name;
  request.max_units = state.deps.max_in_flight - held;
  request.wait = state.deps.lease_wait;
  self->request(state.deps.stream, state.deps.lease_wait + kAnswerMargin, atom::lease_v,
                std::move(request))
      .then([self](const LeaseReply& reply) { on_lease(self, reply); },
            [self](const caf::error&) {
              self->state.leasing = false;
              try_again_later(self);
            });
}

RewardWorkerActor::behavior_type reward_worker(Self self, RewardWorkerDeps deps) {
  self->state.bench = std::make_shared<Bench>();
  self->state.bench->engine = deps.engine;
  self->state.deps = std::move(deps);
  self->send(self, atom::wake_v);
  self->send(self, atom::renew_v);
  return {
      [self](atom::wake) { lease_more(self); },
      [self](atom::renew) {
        // A slow program with a long queue is no reason to deliver rows again.
        renew_held_leases(self, task_id(SampleTask::kReward), kAnswerMargin, [](SampleId) {});
      },
      [self](atom::worked) {
        auto& state = self->state;
        state.working = false;
        if (const Status& gave_up = state.bench->status; !gave_up.ok()) {
          // One that never scored anything would give up again.
          self->quit(
              to_caf_error(state.has_scored ? gave_up : invalid_argument(gave_up.message())));
          return;
        }
        settle(self, std::exchange(state.bench->results, {}));
        work(self);
      },
  };
}

}  // namespace

RewardWorkerActor spawn_reward_worker(caf::actor_system& system, RewardWorkerDeps deps) {
  return system.spawn(reward_worker, std::move(deps));
}

}  // namespace tidemill::actors
