// SPDX-License-Identifier: Apache-2.0
// The advantage worker. It leases groups with one request at a time and decides about them
// immediately.
#include <map>
#include <utility>

#include <caf/all.hpp>

#include "actors/advantage/spawn.hpp"
#include "actors/stream/sample_columns.hpp"
#include "actors/stream/worker_leases.hpp"

namespace tidemill::actors {
namespace {

struct AdvantageWorkerState {
  static inline const char* name = "advantage_worker";
  AdvantageWorkerState() = default;  // not an aggregate: CAF would build it from `self`

  AdvantageWorkerDeps deps;
  bool draining = false;
  bool idle = false;  // no more groups will come
};

using Self = AdvantageWorkerActor::stateful_pointer<AdvantageWorkerState>;

void lease(Self self);

Result<GroupMember> read_member(const storage::LeasedRow& row) {
  TIDEMILL_ASSIGN_OR_RETURN(const auto reward, read_cell<double>(row, SampleColumn::kReward));
  TIDEMILL_ASSIGN_OR_RETURN(const Buffer response, find_cell(row, SampleColumn::kResponseIds));
  TIDEMILL_ASSIGN_OR_RETURN(const auto finish, read_cell<std::uint8_t>(row, SampleColumn::kFinish));
  if (reward.empty() || finish.size() != 1) {
    return Status(Errc::kInternal,
                  "malformed reward or finish column row=" + std::to_string(row.row.id.value));
  }
  GroupMember member;
  member.id = row.row.id;
  member.reward = reward[0];
  member.response_tokens = static_cast<std::uint32_t>(response.size_bytes() / sizeof(std::int32_t));
  member.truncated = finish[0] == static_cast<std::uint8_t>(engines::FinishReason::kLength);
  return member;
}

Result<GroupDecision> decide(const DecideGroup& algorithm,
                             std::span<const storage::LeasedRow> rows) {
  std::vector<GroupMember> members;
  for (const storage::LeasedRow& row : rows) {
    TIDEMILL_ASSIGN_OR_RETURN(GroupMember member, read_member(row));
    members.push_back(member);
  }
  return algorithm(members);
}

void retire(Self self, GroupId group, storage::VerdictKind kind, std::string reason) {
  self->request(self->state.deps.stream, kReplyMargin, atom::retire_v,
                GroupVerdict{group, {kind, std::move(reason)}})
      .then([](const storage::Settlement&) {},
            [](const caf::error&) {});  // the lease expires, and the group is leased again
}

void on_lease(Self self, const LeaseReply& reply) {
  auto& deps = self->state.deps;
  AckRequest ack{task_id(SampleTask::kAdvantage), deps.name, {}};
  std::map<GroupId, std::vector<storage::LeasedRow>> groups;
  for (const storage::LeasedRow& row : reply.rows) {
    groups[row.row.group].push_back(row);
  }
  for (const auto& [group, rows] : groups) {
    const auto decision = decide(deps.decide, rows);
    if (!decision.ok()) {
      retire(self, group, storage::VerdictKind::kFail, "advantage: " + decision.status().message());
      continue;
    }
    if (!decision.value().filtered.empty()) {
      retire(self, group, storage::VerdictKind::kFilter, decision.value().filtered);
      continue;
    }
    for (std::size_t i = 0; i < rows.size(); ++i) {
      ack.rows.push_back({rows[i].lease,
                          {make_cell(SampleColumn::kAdvantage,
                                     std::vector<float>{decision.value().advantages[i]})},
                          {}});
    }
  }
  if (ack.rows.empty()) {
    self->state.idle = reply.ended;
    if (!reply.ended) {
      lease(self);
    }
    return;
  }
  self->request(deps.stream, kReplyMargin, atom::ack_v, std::move(ack))
      .then([self](const storage::Settlement&) { lease(self); },
            [self](const caf::error&) { try_again_later(self); });
}

// Asks for groups. A draining worker ends instead.
void lease(Self self) {
  auto& deps = self->state.deps;
  if (self->state.draining) {
    self->quit();
    return;
  }
  LeaseRequest request;
  request.task = task_id(SampleTask::kAdvantage);
  request.consumer = deps.name;
  request.max_units = deps.max_groups;
  request.wait = deps.lease_wait;
  self->request(deps.stream, deps.lease_wait + kReplyMargin, atom::lease_v, std::move(request))
      .then(
          [self](const LeaseReply& reply) {
            if (self->state.draining) {
              leave_rows(self, task_id(SampleTask::kAdvantage), reply.rows);
              lease(self);
              return;
            }
            on_lease(self, reply);
          },
          [self](const caf::error&) { try_again_later(self); });
}

AdvantageWorkerActor::behavior_type advantage_worker(Self self, AdvantageWorkerDeps deps) {
  self->state.deps = std::move(deps);
  self->send(self, atom::wake_v);
  return {
      [self](atom::wake) { lease(self); },
      [self](atom::drain) {
        self->state.draining = true;
        if (self->state.idle) {
          self->quit();
        }
      },
  };
}

}  // namespace

AdvantageWorkerActor spawn_advantage_worker(caf::actor_system& system, AdvantageWorkerDeps deps) {
  return system.spawn(advantage_worker, std::move(deps));
}

}  // namespace tidemill::actors
