// SPDX-License-Identifier: Apache-2.0
// The recorder: turns records into lines, and appends them in order, one write at a time.
#include <array>
#include <charconv>
#include <deque>
#include <utility>

#include <caf/all.hpp>

#include "actors/errors.hpp"
#include "actors/recorder/spawn.hpp"
#include "base/json.hpp"

namespace tidemill::actors {
namespace {

using Promise = caf::typed_response_promise<RecordMarks>;

// What the work at the port touches; shared with it.
struct Writing {
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
  std::shared_ptr<Writing> writing;  // null: nothing is at the port
  std::vector<Promise> told;         // whose lines are at the port
  std::string metrics;               // lines that wait for the port
  std::string samples;
  std::vector<Promise> waiting;  // whose lines wait, or who asked for the sizes meanwhile
};

using Self = RecorderActor::stateful_pointer<RecorderState>;

std::string metrics_line(const StepRecord& record) {
  Json::Object line{{"kind", record.kind}, {"step", static_cast<std::int64_t>(record.step)}};
  for (const auto& [name, value] : record.figures) {
    line.push_back({name, value});
  }
  return Json(std::move(line)).to_line();
}

// The number with the fewest digits that is read back as `value`: half the bytes of a double's.
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
                    {"answer", sample.answer},
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
  if (state.writing != nullptr || state.waiting.empty()) {
    return;
  }
  state.writing = std::make_shared<Writing>();
  state.writing->files = state.deps.files;
  state.writing->metrics = std::exchange(state.metrics, {});
  state.writing->samples = std::exchange(state.samples, {});
  state.told = std::exchange(state.waiting, {});
  state.deps.port->run(
      [work = state.writing] {
        work->marks = work->files->append(work->metrics, work->samples);
        return Duration{0};
      },
      caf::actor_cast<caf::strong_actor_ptr>(self), caf::make_message(atom::worked_v));
}

void on_written(Self self) {
  auto& state = self->state;
  const auto written = std::exchange(state.writing, nullptr);
  if (written->marks.ok()) {
    state.marks = written->marks.value();
  }
  for (Promise& promise : std::exchange(state.told, {})) {
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
        state.waiting.push_back(promise);
        write_next(self);
        return promise;
      },
      [self](atom::capture) {
        auto& state = self->state;
        auto promise = self->make_response_promise<RecordMarks>();
        if (state.writing == nullptr) {
          promise.deliver(state.marks);
        } else {
          state.waiting.push_back(promise);
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
