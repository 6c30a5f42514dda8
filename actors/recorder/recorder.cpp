// SPDX-License-Identifier: Apache-2.0
// The recorder. It appends records in order, with one write at a time. The port decodes responses
// and formats lines, because a batch of long responses takes too long for a message handler.
#include <utility>

#include <caf/all.hpp>

#include "actors/errors.hpp"
#include "actors/recorder/spawn.hpp"
#include "storage/run_files/metrics_line.hpp"
#include "storage/run_files/sample_line.hpp"

namespace tidemill::actors {
namespace {

using Promise = caf::typed_response_promise<RecordMarks>;

// Shared with the work at the port.
struct PortWork {
  std::shared_ptr<RecordFiles> files;
  DecodeResponse decode;
  std::vector<StepRecord> records;
  Result<RecordMarks> marks = RecordMarks{};
};

struct RecorderState {
  static inline const char* name = "recorder";
  RecorderState() = default;  // not an aggregate: CAF would build it from `self`

  RecorderDeps deps;
  RecordMarks marks;
  std::shared_ptr<PortWork> port_work;  // null if no write is at the port
  std::vector<Promise> write_promises;  // replied to when the write at the port is done
  std::vector<StepRecord> records;      // of the next write
  std::vector<Promise> next_promises;   // replied to when the next write is done
};

using Self = RecorderActor::stateful_pointer<RecorderState>;

storage::SampleLine sample_line(SampleRecord& sample, std::uint64_t step,
                                const DecodeResponse& decode) {
  storage::SampleLine line;
  line.step = step;
  line.sample = sample.id.value;
  line.group = sample.group.value;
  line.prompt = std::move(sample.prompt);
  line.response = decode(sample.response_ids);
  line.reference_answer = std::move(sample.reference_answer);
  line.reward = sample.reward;
  line.rewards = std::move(sample.reward_parts);
  line.advantage = sample.advantage;
  line.finish_reason = std::move(sample.finish_reason);
  for (const engines::VersionSpan& span : sample.versions) {
    line.versions.push_back({span.version.step, span.num_tokens});
  }
  line.response_ids = std::move(sample.response_ids);
  line.behavior_logprobs = std::move(sample.behavior_logprobs);
  return line;
}

// Runs at the port: decodes the responses, and converts the records to lines.
void write(PortWork& work) {
  std::string metrics;
  std::string samples;
  for (StepRecord& record : work.records) {
    for (SampleRecord& sample : record.samples) {
      samples += storage::write_sample_line(sample_line(sample, record.step, work.decode));
    }
    metrics += storage::write_metrics_line(
        {std::move(record.kind), record.step, std::move(record.metrics)});
  }
  work.records.clear();
  work.marks = work.files->append(metrics, samples);
}

void write_next(Self self) {
  auto& state = self->state;
  if (state.port_work != nullptr || state.next_promises.empty()) {
    return;
  }
  state.port_work = std::make_shared<PortWork>();
  state.port_work->files = state.deps.files;
  state.port_work->decode = state.deps.decode;
  state.port_work->records = std::exchange(state.records, {});
  state.write_promises = std::exchange(state.next_promises, {});
  state.deps.port->run(
      [port_work = state.port_work] {
        write(*port_work);
        return Duration{0};
      },
      caf::actor_cast<caf::strong_actor_ptr>(self), caf::make_message(atom::worked_v));
}

void on_written(Self self) {
  auto& state = self->state;
  const auto written = std::exchange(state.port_work, nullptr);
  if (written->marks.ok()) {
    state.marks = written->marks.value();
  }
  for (Promise& promise : std::exchange(state.write_promises, {})) {
    if (written->marks.ok()) {
      promise.deliver(state.marks);
    } else {
      promise.deliver(to_caf_error(written->marks.status()));
    }
  }
  write_next(self);
}

RecorderActor::behavior_type recorder(Self self, RecorderDeps deps) {
  self->state.marks = deps.marks;
  self->state.deps = std::move(deps);
  return {
      [self](atom::record, StepRecord& record) {
        auto& state = self->state;
        if (state.deps.observer) {
          state.deps.observer(record);
        }
        state.records.push_back(std::move(record));
        auto promise = self->make_response_promise<RecordMarks>();
        state.next_promises.push_back(promise);
        write_next(self);
        return promise;
      },
      [self](atom::capture) {
        auto& state = self->state;
        auto promise = self->make_response_promise<RecordMarks>();
        if (state.port_work == nullptr) {
          promise.deliver(state.marks);
        } else {
          state.next_promises.push_back(promise);
        }
        return promise;
      },
      [self](atom::worked) { on_written(self); },
  };
}

}  // namespace

RecorderActor spawn_recorder(caf::actor_system& system, RecorderDeps deps) {
  return system.spawn(recorder, std::move(deps));
}

}  // namespace tidemill::actors
