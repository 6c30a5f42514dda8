// SPDX-License-Identifier: Apache-2.0
// The rollout worker. It asks for rows whenever it can hold more, with one lease request at a time.
// For every row that it holds, it sends one request to generate. It sends one `ack` at a time, with
// all responses that have arrived since the one before, and a `nack` for each row that has none.
#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include <caf/all.hpp>

#include "actors/errors.hpp"
#include "actors/rollout/spawn.hpp"
#include "actors/stream/sample_columns.hpp"
#include "actors/stream/worker_leases.hpp"

namespace tidemill::actors {
namespace {

using engines::RolloutRequest;
using engines::RolloutResult;

// How many bytes of cells an `ack` has when no more rows are added. Far below the largest message.
constexpr std::size_t kMaxAckBytes = std::size_t{1} << 20U;

struct RolloutWorkerState {
  static inline const char* name = "rollout_worker";
  RolloutWorkerState() = default;  // not an aggregate: CAF would build it from `self`

  RolloutWorkerDeps deps;
  std::map<SampleId, storage::Lease> held;
  std::deque<storage::HeldRow> done;  // rows with a response that were not acked yet
  bool acking = false;
  Duration lease_time{0};
  bool leasing = false;
  bool ended = false;
  bool draining = false;
  bool given_up = false;
  std::uint32_t failed = 0;  // deliveries in a row
};

using Self = RolloutWorkerActor::stateful_pointer<RolloutWorkerState>;

void lease_more(Self self);

// Returns whether the row is held under `lease`. A reply may arrive after the row was lost, or
// after it was lost and leased again.
bool holds(Self self, const storage::Lease& lease) {
  const auto it = self->state.held.find(lease.row);
  return it != self->state.held.end() && it->second == lease;
}

// Removes a row from `held`. Returns whether the row was held under `lease`.
bool release_row(Self self, const storage::Lease& lease) {
  return holds(self, lease) && self->state.held.erase(lease.row) > 0;
}

// Ends the worker. Nothing may be requested afterwards, because an actor that waits for a reply
// does not end.
void give_up(Self self, const std::string& last_reason) {
  auto& state = self->state;
  state.ended = true;
  state.given_up = true;
  self->quit(to_caf_error(
      invalid_argument(std::to_string(state.failed) +
                       " samples in a row without a response; the last: " + last_reason)));
}

void give_back(Self self, const storage::Lease& lease, storage::Release release,
               const std::string& reason) {
  auto& state = self->state;
  if (!release_row(self, lease) || state.given_up) {
    return;
  }
  if (release == storage::Release::kFailed && ++state.failed >= state.deps.max_failed) {
    give_up(self, reason);
    return;
  }
  LeaseUpdate rows{task_id(SampleTask::kRollout), state.deps.name, {{lease}}, release, reason};
  self->request(state.deps.stream, kReplyMargin, atom::nack_v, std::move(rows))
      .then([self](const storage::Settlement&) { lease_more(self); },
            [self](const caf::error&) { try_again_later(self); });
}

// A request that the device refuses would be refused again; a reply that does not come is lost.
storage::Release release_for(const caf::error& error) {
  switch (from_caf_error(error).code()) {
    case Errc::kInvalidArgument:
    case Errc::kNotFound:
    case Errc::kResourceExhausted: return storage::Release::kFailed;
    default: return storage::Release::kLost;
  }
}

// A response that was cancelled shows nothing about its row, unless it exceeded its time limit,
// which its error says.
storage::Release release_for(const RolloutResult& result) {
  return result.finish_reason == engines::FinishReason::kCancelled && result.error.empty()
             ? storage::Release::kLost
             : storage::Release::kFailed;
}

// Counts what became of `num_rows` responses that were written. A response whose cells the stream
// refuses is a failed delivery. Returns false if there were too many in a row, and the worker has
// ended.
bool take_settlement(Self self, const storage::Settlement& settlement, std::size_t num_rows) {
  auto& state = self->state;
  if (settlement.refused.size() < num_rows) {
    state.failed = 0;
  }
  for (const storage::RefusedRow& refused : settlement.refused) {
    if (storage::is_content_refusal(refused.reason) && !state.given_up &&
        ++state.failed >= state.deps.max_failed) {
      give_up(self, refused.detail);
    }
  }
  return !state.given_up;
}

std::size_t bytes_of(const storage::HeldRow& row) {
  std::size_t bytes = 0;
  for (const storage::ColumnValue& cell : row.columns) {
    bytes += cell.value.size_bytes();
  }
  return bytes;
}

// Takes responses out of `done` until they have `kMaxAckBytes`. Leaves out the rows that the worker
// does not hold any more.
std::vector<storage::HeldRow> take_done(Self self) {
  auto& done = self->state.done;
  std::vector<storage::HeldRow> rows;
  std::size_t bytes = 0;
  while (!done.empty() && bytes < kMaxAckBytes) {
    storage::HeldRow row = std::move(done.front());
    done.pop_front();
    if (release_row(self, row.lease)) {
      bytes += bytes_of(row);
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

// Acks the rows that have a response, unless the reply to an `ack` is due, which calls this again.
void ack_done(Self self) {
  auto& state = self->state;
  if (state.acking || state.given_up) {
    return;
  }
  AckRequest ack{task_id(SampleTask::kRollout), state.deps.name, take_done(self)};
  if (ack.rows.empty()) {
    return;
  }
  state.acking = true;
  const std::size_t num_rows = ack.rows.size();
  const auto handle = self->request(state.deps.stream, kReplyMargin, atom::ack_v, std::move(ack));
  handle.then(
      [self, num_rows, id = handle.id()](const storage::Settlement& settlement) {
        end_deadline(self, id);
        self->state.acking = false;
        if (take_settlement(self, settlement, num_rows)) {
          ack_done(self);
          lease_more(self);
        }
      },
      [self, id = handle.id()](const caf::error&) {
        end_deadline(self, id);
        self->state.acking = false;
        ack_done(self);
        try_again_later(self);
      });
}

void write_back(Self self, const storage::Lease& lease, RolloutResult& result) {
  if (!holds(self, lease)) {
    return;
  }
  storage::HeldRow row;
  row.lease = lease;
  row.facts.tokens = result.response_ids.size();
  for (const engines::VersionSpan& span : result.versions) {
    row.facts.oldest_step = std::min(row.facts.oldest_step, span.version.step);
  }
  row.columns.push_back(make_versions_cell(result.versions));
  row.columns.push_back(make_cell(SampleColumn::kResponseIds, std::move(result.response_ids)));
  row.columns.push_back(
      make_cell(SampleColumn::kBehaviorLogprobs, std::move(result.behavior_logprobs)));
  row.columns.push_back(
      make_cell(SampleColumn::kFinish,
                std::vector<std::uint8_t>{static_cast<std::uint8_t>(result.finish_reason)}));
  self->state.done.push_back(std::move(row));
  ack_done(self);
}

void generate(Self self, const storage::LeasedRow& row) {
  auto& state = self->state;
  if (state.given_up) {
    return;
  }
  auto prompt = read_cell<std::int32_t>(row, SampleColumn::kPromptIds);
  state.held.insert_or_assign(row.row.id, row.lease);
  if (!prompt.ok()) {
    give_back(self, row.lease, storage::Release::kFailed, prompt.status().message());
    return;
  }
  RolloutRequest request;
  request.id = row.row.id;
  request.prompt_ids = std::move(prompt).value();
  request.sampling = state.deps.sampling;
  request.seed = state.deps.seed;
  request.max_new_tokens = state.deps.max_new_tokens;
  request.stop_ids = state.deps.stop_ids;
  request.stop_strings = state.deps.stop_strings;
  request.min_step = row.row.min_step;
  request.keep_rows = true;
  const auto handle = self->request(state.deps.serving, state.deps.reply_deadline, atom::generate_v,
                                    std::move(request));
  handle.then(
      [self, lease = row.lease, id = handle.id()](RolloutResult& result) {
        end_deadline(self, id);
        if (result.finish_reason == engines::FinishReason::kStop ||
            result.finish_reason == engines::FinishReason::kLength) {
          write_back(self, lease, result);
        } else {
          give_back(self, lease, release_for(result),
                    "rollout " + std::string(finish_reason_name(result.finish_reason)) +
                        (result.error.empty() ? "" : ": " + result.error));
        }
      },
      [self, lease = row.lease, id = handle.id()](const caf::error& error) {
        end_deadline(self, id);
        self->send(self->state.deps.serving, atom::cancel_v, lease.row);
        give_back(self, lease, release_for(error), "rollout: " + from_caf_error(error).message());
      });
}

void lease_more(Self self) {
  lease_more_rows(self, task_id(SampleTask::kRollout),
                  [self](const std::vector<storage::LeasedRow>& rows) {
                    for (const storage::LeasedRow& row : rows) {
                      generate(self, row);
                    }
                    lease_more(self);
                  });
}

RolloutWorkerActor::behavior_type rollout_worker(Self self, RolloutWorkerDeps deps) {
  self->state.deps = std::move(deps);
  self->send(self, atom::wake_v);
  self->send(self, atom::renew_v);
  return {
      [self](atom::wake) { lease_more(self); },
      [self](atom::drain) {
        self->state.draining = true;
        lease_more(self);
      },
      [self](atom::renew) {
        renew_held_leases(self, task_id(SampleTask::kRollout), [self](SampleId row) {
          self->send(self->state.deps.serving, atom::cancel_v, row);
        });
      },
  };
}

}  // namespace

RolloutWorkerActor spawn_rollout_worker(caf::actor_system& system, RolloutWorkerDeps deps) {
  return system.spawn(rollout_worker, std::move(deps));
}

}  // namespace tidemill::actors
