// SPDX-License-Identifier: Apache-2.0
// The prompt source: admit -> read -> put -> admit. Sample ids count rows in admission order.
#include <deque>
#include <utility>

#include <caf/all.hpp>

#include "actors/errors.hpp"
#include "actors/source/spawn.hpp"
#include "actors/stream/sample_columns.hpp"

namespace tidemill::actors {
namespace {

constexpr Duration kAnswerMargin = std::chrono::seconds(30);

// What the work at the port touches; shared with it.
struct Reading {
  std::shared_ptr<PromptReader> reader;
  Result<std::vector<Prompt>> prompts = std::vector<Prompt>{};
};

struct PromptSourceState {
  static inline const char* name = "prompt_source";
  PromptSourceState() = default;  // not an aggregate: CAF would build it from `self`

  PromptSourceDeps deps;
  std::shared_ptr<Reading> reading;
  Admission admission;       // places being filled
  std::deque<Prompt> unput;  // read, not yet in the stream
  std::uint64_t next_draw = 0;
  std::uint64_t next_group = 0;  // of the admission
};

using Self = PromptSourceActor::stateful_pointer<PromptSourceState>;

void admit(Self self);

void fail(Self self, const Status& status) {
  self->quit(to_caf_error(status));
}

NewGroup make_group(const Prompt& prompt, std::uint64_t group, const PromptSourceState& state) {
  // The rows of a group share their cells: buffers are handles.
  const std::vector<storage::ColumnValue> cells{
      make_cell(SampleColumn::kPromptIds, prompt.ids),
      make_text_cell(SampleColumn::kPrompt, prompt.prompt),
      make_text_cell(SampleColumn::kAnswer, prompt.answer),
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
  if (state.unput.empty()) {
    admit(self);
    return;
  }
  const Prompt prompt = std::move(state.unput.front());
  state.unput.pop_front();
  self->request(state.deps.stream, state.deps.put_deadline, atom::put_v,
                make_group(prompt, state.next_group++, state))
      .then([self](const storage::Settlement&) { put_next(self); },
            [self](const caf::error& error) {
              fail(self, from_caf_error(error).with_context("putting a group"));
            });
}

void on_read(Self self) {
  auto& state = self->state;
  if (!state.reading->prompts.ok()) {
    fail(self, state.reading->prompts.status());
    return;
  }
  const std::vector<Prompt>& prompts = state.reading->prompts.value();
  state.unput.assign(prompts.begin(), prompts.end());
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
      [reading = state.reading, draw = state.next_draw, count = admission.groups] {
        reading->prompts = reading->reader->read(draw, count);
        return Duration{0};
      },
      caf::actor_cast<caf::strong_actor_ptr>(self), caf::make_message(atom::worked_v));
}

void admit(Self self) {
  auto& state = self->state;
  const std::uint64_t put = state.next_group - state.admission.first_group;
  if (put < state.admission.groups) {  // the reader had no more: the data has ended
    self->send(state.deps.stream, atom::finish_v);
    self->send(state.deps.keeper, atom::finish_v, state.next_group);
    return;
  }
  AdmissionRequest request{state.deps.groups_at_once, state.deps.admission_wait};
  self->request(state.deps.keeper, state.deps.admission_wait + kAnswerMargin, atom::admit_v,
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
            fail(self, from_caf_error(error).with_context("asking for places"));
          });
}

PromptSourceActor::behavior_type prompt_source(Self self, PromptSourceDeps deps) {
  auto& state = self->state;
  state.reading = std::make_shared<Reading>();
  state.reading->reader = deps.reader;
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
