// SPDX-License-Identifier: Apache-2.0
// A fake device, a store in memory and a clock for tests of Tinker's API.
#pragma once

#include <deque>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "actors/tinker/service.hpp"
#include "tests/support/temporary_directory.hpp"

namespace tidemill::test {

namespace tinker = actors::tinker;

/// Records requests, and replies when the test says so.
class FakeTuning final : public tinker::TuningBackend {
public:
  void open(tinker::NewJob job, tinker::DoneStatus done) override {
    log.push_back(
        "open rank " + std::to_string(job.lora.rank) +
        (job.state ? job.state->optimizer ? " from state with optimizer" : " from state" : ""));
    open_jobs.insert(job.name);
    later([done = std::move(done), status = take_failure()] { done(status); });
  }
  void close(const std::string& job) override {
    log.emplace_back("close");
    open_jobs.erase(job);
  }
  void forward(tinker::ForwardWork work, tinker::Done<tinker::ForwardOutcome> done) override {
    log.push_back((work.backward ? "backward " : "forward ") +
                  std::to_string(work.sequences[0].ids[0]));
    tinker::ForwardOutcome outcome;
    for (const engines::TrainSequence& sequence : work.sequences) {
      outcome.logprobs.emplace_back(sequence.ids.size(), -0.5F);
    }
    outcome.loss = 3.0;
    later([done = std::move(done), outcome, status = take_failure()] {
      status.ok() ? done(outcome) : done(status);
    });
  }
  void step(const std::string& /*job*/, engines::OptimStep step,
            tinker::Done<engines::UpdateReport> done) override {
    log.push_back("step " + std::to_string(step.learning_rate.value_or(0.0)));
    engines::UpdateReport report;
    report.gradient_norm = 2.0;
    report.optimizer_step = 1;
    later([done = std::move(done), report, status = take_failure()] {
      status.ok() ? done(report) : done(status);
    });
  }
  void discard_gradients(const std::string& /*job*/, tinker::DoneStatus done) override {
    log.emplace_back("discard");
    later([done = std::move(done)] { done(Status()); });
  }
  void save(const std::string& /*job*/, bool with_optimizer,
            tinker::Done<tinker::JobState> done) override {
    log.emplace_back(with_optimizer ? "save with optimizer" : "save");
    tinker::JobState state;
    if (with_optimizer) {
      state.optimizer.emplace();
    }
    later([done = std::move(done), state] { done(state); });
  }
  void load(const std::string& /*job*/, tinker::JobState state, tinker::DoneStatus done) override {
    log.emplace_back(state.optimizer ? "load with optimizer" : "load");
    later([done = std::move(done)] { done(Status()); });
  }
  void publish(tinker::PublishedAdapter adapter, tinker::DoneStatus done) override {
    log.push_back("publish " + adapter.name);
    published.insert(adapter.name);
    later([done = std::move(done), status = take_failure()] { done(status); });
  }
  void unpublish(const std::string& name) override {
    log.push_back("unpublish " + name);
    published.erase(name);
  }
  void generate(engines::RolloutRequest request,
                tinker::Done<engines::RolloutResult> done) override {
    requests.push_back(request);
    engines::RolloutResult result;
    result.id = request.id;
    result.finish_reason = engines::FinishReason::kStop;
    result.response_ids = {static_cast<std::int32_t>(request.key())};
    result.behavior_logprobs = {-1.0F};
    later([done = std::move(done), result] { done(result); });
  }
  void cancel(SampleId id) override { cancelled.push_back(id); }

  /// Runs everything that waits, and what it starts.
  void run() {
    while (!pending.empty()) {
      run_one();
    }
  }
  void run_one() {
    const auto next = std::move(pending.front());
    pending.pop_front();
    next();
  }
  void later(std::function<void()> call) { pending.push_back(std::move(call)); }
  /// Makes the next request that can fail do so.
  Status take_failure() { return std::exchange(next_failure, Status()); }

  std::vector<std::string> log;
  std::set<std::string> open_jobs;
  std::set<std::string> published;
  std::vector<engines::RolloutRequest> requests;
  std::vector<SampleId> cancelled;
  std::deque<std::function<void()>> pending;
  Status next_failure;
};

/// Keeps checkpoints in memory.
class MemoryStore final : public tinker::CheckpointStore {
public:
  Result<tinker::Listing<tinker::CheckpointInfo>> checkpoints() override {
    tinker::Listing<tinker::CheckpointInfo> out;
    out.damaged = damaged;
    for (const auto& [path, entry] : entries) {
      out.entries.push_back(entry.first);
    }
    return out;
  }
  Result<tinker::Listing<tinker::RunInfo>> runs() override {
    tinker::Listing<tinker::RunInfo> out;
    for (const auto& [id, run] : all_runs) {
      out.entries.push_back(run);
    }
    return out;
  }
  Status put_run(const tinker::RunInfo& run) override {
    if (Status failure = std::exchange(next_run_failure, Status()); !failure.ok()) {
      return failure;
    }
    all_runs[run.id] = run;
    return {};
  }
  Status remove_run(const std::string& id) override {
    all_runs.erase(id);
    return {};
  }
  Result<std::int64_t> put(const tinker::CheckpointInfo& info, const tinker::JobState& state,
                           std::span<const tinker::AgeRecipient> /*recipients*/) override {
    entries[info.path] = {info, state};
    return 100;
  }
  Status set_expiry(const tinker::CheckpointPath& path,
                    std::optional<std::int64_t> expires_at) override {
    entries.at(path).first.expires_at = expires_at;
    return {};
  }
  Result<tinker::JobState> get(const tinker::CheckpointPath& path, bool with_optimizer) override {
    if (!entries.contains(path)) {
      return Status(Errc::kNotFound, "no such checkpoint");
    }
    if (Status failure = std::exchange(next_get_failure, Status()); !failure.ok()) {
      return failure;
    }
    tinker::JobState state = entries.at(path).second;
    if (!with_optimizer) {
      state.optimizer.reset();
    }
    return state;
  }
  Status remove(const tinker::CheckpointPath& path) override {
    if (Status failure = std::exchange(next_remove_failure, Status()); !failure.ok()) {
      return failure;
    }
    const std::size_t removed =
        entries.erase(path) + std::erase_if(damaged, [&](const tinker::DamagedEntry& one) {
          return one.id == to_text(path);
        });
    return removed > 0 ? Status() : Status(Errc::kNotFound, "no such checkpoint");
  }
  Result<std::vector<tinker::CheckpointFile>> files(
      const tinker::CheckpointPath& /*path*/) override {
    return std::vector<tinker::CheckpointFile>{{"adapter_config.json", 2}};
  }
  // The content of a file is its name.
  Result<std::shared_ptr<const ReadableFile>> open_file(const tinker::CheckpointPath& /*path*/,
                                                        const std::string& name) override {
    if (name != "adapter_config.json") {
      return Status(Errc::kNotFound, "no file");
    }
    std::ofstream(folder_.path() / name) << name;
    return std::make_shared<const ReadableFile>(ReadableFile::open(folder_.path() / name).value());
  }

  std::map<tinker::CheckpointPath, std::pair<tinker::CheckpointInfo, tinker::JobState>> entries;
  std::vector<tinker::DamagedEntry> damaged;
  Status next_run_failure;     // of the next `put_run`
  Status next_get_failure;     // of the next `get`
  Status next_remove_failure;  // of the next `remove`
  std::map<std::string, tinker::RunInfo> all_runs;

private:
  TemporaryDirectory folder_{memory_directory_path()};
};

}  // namespace tidemill::test
