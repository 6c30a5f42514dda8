// SPDX-License-Identifier: Apache-2.0
// The recorder. It converts records to lines and appends them in order, with one write at a time.
#include <array>
#include <charconv>
#include <deque>
#include <utility>

#include <caf/all.hpp>

#include "actors/errors.hpp"
#include "actors/recorder/spawn.hpp"
#include "base/json/json.hpp"

namespace tidemill::actors {
namespace {

using Promise = caf::typed_response_promise<RecordMarks>;

// Shared with the work at the port.
struct PortWork {
  std::shared_ptr<RecordFiles> files;
  std::string metrics;
  std::string samples;
  Result<RecordMarks> marks = RecordMarks{};
};

struct RecorderState {
  static inline const char* name = "recorder";
  RecorderState() = default;  // not an aggregate: CAF would build it from `self`

  RecorderDeps deps;
  RecordMarks marks;
  std::shared_ptr<PortWork> port_work;  // null if no write is at the port
  std::vector<Promise> write_promises;  // replied to when the write at the port is done
  std::string metrics;                  // lines of the next write
  std::string samples;
  std::vector<Promise> next_promises;  // replied to when the next write is done
};

using Self = RecorderActor::stateful_pointer<RecorderState>;

std::string metrics_line(const StepRecord& record) {
  Json::Object line{{"kind", record.kind}, {"step", static_cast<std::int64_t>(record.step)}};
  for (const auto& [name, value] : record.metrics) {
    line.push_back({name, value});
  }
  return Json(std::move(line)).to_line();
}

// Returns the number with the fewest digits that is read back as `value`. It takes about half the
// bytes of `value` printed as a double.
double short_number(float value) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  double number = 0.0;
  std::from_chars(text.data(), end, number);
  return static_cast<float>(number) == value ? number : static_cast<double>(value);
}

std::string sample_line(const SampleRecord& sample, std::uint64_t step) {
  Json::Array versions;
  for (const engines::VersionSpan& span : sample.versions) {
    versions.push_back(Json::Object{{"step", static_cast<std::int64_t>(span.version.step)},
                                    {"tokens", static_cast<std::int64_t>(span.num_tokens)}});
  }
  Json::Object parts;
  for (const auto& [name, value] : sample.reward_parts) {
    parts.push_back({name, value});
  }
  Json::Array ids;
  for (const std::int32_t id : sample.response_ids) {
    ids.push_back(Json(id));
  }
  Json::Array logprobs;
  for (const float logprob : sample.behavior_logprobs) {
    logprobs.push_back(Json(short_number(logprob)));
  }
  Json::Object line{{"step", static_cast<std::int64_t>(step)},
                    {"sample", static_cast<std::int64_t>(sample.id.value)},
                    {"group", static_cast<std::int64_t>(sample.group.value)},
                    {"prompt", sample.prompt},
                    {"response", sample.response},
                    {"answer", sample.reference_answer},
                    {"reward", sample.reward}};
  if (!parts.empty()) {
    line.push_back({"rewards", Json(std::move(parts))});
  }
  line.push_back({"advantage", short_number(sample.advantage)});
  line.push_back({"finish_reason", sample.finish_reason});
  line.push_back({"versions", std::move(versions)});
  line.push_back({"response_ids", std::move(ids)});
  line.push_back({"behavior_logprobs", std::move(logprobs)});
  return Json(std::move(line)).to_line();
}

void write_next(Self self) {
  auto& state = self->state;
  if (state.port_work != nullptr || state.next_promises.empty()) {
    return;
  }
  state.port_work = std::make_shared<PortWork>();
  state.port_work->files = state.deps.files;
  state.port_work->metrics = std::exchange(state.metrics, {});
  state.port_work->samples = std::exchange(state.samples, {});
  state.write_promises = std::exchange(state.next_promises, {});
  state.deps.port->run(
      [port_work = state.port_work] {
        port_work->marks = port_work->files->append(port_work->metrics, port_work->samples);
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
      [self](atom::record, const StepRecord& record) {
        auto& state = self->state;
        if (state.deps.observer) {
          state.deps.observer(record);
        }
        state.metrics += metrics_line(record);
        for (const SampleRecord& sample : record.samples) {
          state.samples += sample_line(sample, record.step);
        }
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
