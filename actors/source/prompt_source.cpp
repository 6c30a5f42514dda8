// SPDX-License-Identifier: Apache-2.0
// The prompt source. It repeats admit, read and put. Sample ids number the rows in the order of
// admission.
#include <deque>
#include <utility>

#include <caf/all.hpp>

#include "actors/errors.hpp"
#include "actors/source/spawn.hpp"
#include "actors/stream/sample_columns.hpp"

namespace tidemill::actors {
namespace {

constexpr Duration kReplyMargin = std::chrono::seconds(30);

// Shared with the work at the port.
struct PortWork {
  std::shared_ptr<PromptReader> reader;
  Result<std::vector<Prompt>> prompts = std::vector<Prompt>{};
};

struct PromptSourceState {
  static inline const char* name = "prompt_source";
  PromptSourceState() = default;  // not an aggregate: CAF would build it from `self`

  PromptSourceDeps deps;
  std::shared_ptr<PortWork> port_work;
  Admission admission;        // the slots that are being filled
  std::deque<Prompt> unsent;  // read, but not yet put into the stream
  std::uint64_t next_draw = 0;
  std::uint64_t next_group = 0;  // of the admission
};

using Self = PromptSourceActor::stateful_pointer<PromptSourceState>;

void admit(Self self);

void fail(Self self, const Status& status) {
  self->quit(to_caf_error(status));
}

NewGroup make_group(const Prompt& prompt, std::uint64_t group, const PromptSourceState& state) {
  // The rows of a group share the memory of their cells, since buffers are handles.
  const std::vector<storage::ColumnValue> cells{
      make_cell(SampleColumn::kPromptIds, prompt.ids),
      make_text_cell(SampleColumn::kPrompt, prompt.prompt),
      make_text_cell(SampleColumn::kReferenceAnswer, prompt.reference_answer),
      make_text_cell(SampleColumn::kFields, prompt.fields)};
  NewGroup rows;
  rows.draw = prompt.draw;
  for (std::uint32_t index = 0; index < state.deps.group_size; ++index) {
    storage::SampleRow row;
    row.id = {group * state.deps.group_size + index};
    row.group = {group};
    row.index_in_group = index;
    row.group_size = state.deps.group_size;
    row.epoch = prompt.epoch;
    row.data_position = prompt.position;
    row.min_step = state.admission.min_step;
    rows.rows.push_back({row, cells});
  }
  return rows;
}

void put_next(Self self) {
  auto& state = self->state;
  if (state.unsent.empty()) {
    admit(self);
    return;
  }
  const Prompt prompt = std::move(state.unsent.front());
  state.unsent.pop_front();
  self->request(state.deps.stream, state.deps.put_deadline, atom::put_v,
                make_group(prompt, state.next_group++, state))
      .then([self](const storage::Settlement&) { put_next(self); },
            [self](const caf::error& error) {
              fail(self, from_caf_error(error).with_context("putting a group"));
            });
}

void on_read(Self self) {
  auto& state = self->state;
  if (!state.port_work->prompts.ok()) {
    fail(self, state.port_work->prompts.status());
    return;
  }
  const std::vector<Prompt>& prompts = state.port_work->prompts.value();
  state.unsent.assign(prompts.begin(), prompts.end());
  if (!prompts.empty()) {
    state.next_draw = prompts.back().draw + 1;
  }
  put_next(self);
}

void read(Self self, const Admission& admission) {
  auto& state = self->state;
  state.admission = admission;
  state.next_group = admission.first_group;
  state.deps.port->run(
      [port_work = state.port_work, draw = state.next_draw, count = admission.groups] {
        port_work->prompts = port_work->reader->read(draw, count);
        return Duration{0};
      },
      caf::actor_cast<caf::strong_actor_ptr>(self), caf::make_message(atom::worked_v));
}

void admit(Self self) {
  auto& state = self->state;
  const std::uint64_t put = state.next_group - state.admission.first_group;
  if (put < state.admission.groups) {  // the reader returned fewer prompts: the data has ended
    self->send(state.deps.stream, atom::finish_v);
    self->send(state.deps.keeper, atom::finish_v, state.next_group);
    return;
  }
  AdmissionRequest request{state.deps.groups_at_once, state.deps.admission_wait};
  self->request(state.deps.keeper, state.deps.admission_wait + kReplyMargin, atom::admit_v,
                std::move(request))
      .then(
          [self](const Admission& admission) {
            if (admission.groups == 0) {
              admit(self);
            } else {
              read(self, admission);
            }
          },
          [self](const caf::error& error) {
            fail(self, from_caf_error(error).with_context("requesting slots"));
          });
}

PromptSourceActor::behavior_type prompt_source(Self self, PromptSourceDeps deps) {
  auto& state = self->state;
  state.port_work = std::make_shared<PortWork>();
  state.port_work->reader = deps.reader;
  state.next_draw = deps.first_draw;
  state.deps = std::move(deps);
  return {
      [self](atom::start) { admit(self); },
      [self](atom::worked) { on_read(self); },
  };
}

}  // namespace

PromptSourceActor spawn_prompt_source(caf::actor_system& system, PromptSourceDeps deps) {
  return system.spawn(prompt_source, std::move(deps));
}

}  // namespace tidemill::actors
