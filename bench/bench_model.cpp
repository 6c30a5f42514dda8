// SPDX-License-Identifier: Apache-2.0
#include "bench/bench_model.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "bench/bench_adapters.hpp"
#include "bench/peak_memory.hpp"
#include "engines/executor/executor.hpp"
#include "engines/runtime/memory_estimate.hpp"
#include "engines/runtime/new_adapter.hpp"

namespace tidemill::bench {
namespace {

// Returns the report of an iteration, or why a part of it failed.
Result<engines::StepReport> report_of(const engines::Iteration& iteration) {
  TIDEMILL_RETURN_IF_ERROR(iteration.rollout_status);
  if (iteration.failed_job.has_value()) {
    return iteration.failed_job->status;
  }
  return iteration.report;
}

using engines::ModelFiles;
using engines::RolloutRequest;
using engines::RuntimeOptions;
using engines::TrainSequence;

constexpr std::int64_t kStepTokens = 4096;  // at most, in one iteration
constexpr std::uint64_t kSeed = 7;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<std::int32_t> random_ids(std::int64_t count, std::int64_t vocabulary,
                                     std::uint64_t& state) {
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    ids.push_back(
        static_cast<std::int32_t>((state >> 33U) % static_cast<std::uint64_t>(vocabulary)));
  }
  return ids;
}

// Returns the most that the work of a figure holds at one time.
engines::MemoryLoad load_of(const BenchModelOptions& how) {
  const bool trains = how.training != Training::kNone;
  engines::MemoryLoad load;
  load.train_tokens = trains ? how.batch * how.train_tokens : 0;
  load.sequence_tokens = trains ? how.train_tokens : 0;
  load.rollout_tokens =
      how.new_tokens > 0 ? std::clamp(how.batch * how.prompt_tokens, how.batch, kStepTokens) : 0;
  load.sampled_tokens = how.batch;
  const std::int64_t longest = std::max(load.sequence_tokens, how.prompt_tokens + how.new_tokens);
  const std::int64_t pages = (longest + engines::kPageTokens - 1) / engines::kPageTokens;
  load.kv_tokens = how.batch * pages * engines::kPageTokens;
  load.publishes = false;
  load.snapshots = 0;
  return load;
}

// Makes room for the load of a figure. If the figure does not say which requests it submits, there
// is room for many. Otherwise the cache has room for one repetition: it keeps the pages of ended
// requests while there is room, and those of earlier repetitions would count as peak memory.
void set_room(const engines::ModelConfig& config, const BenchModelOptions& how,
              const engines::MemoryLoad& load, RuntimeOptions& runtime) {
  constexpr std::int64_t kLeastCache = std::int64_t{512} << 20U;
  constexpr std::int64_t kLeastActivations = std::int64_t{8} << 30U;
  engines::set_budgets(config, load, runtime);
  runtime.activation_bytes = std::max(runtime.activation_bytes, kLeastActivations);
  if (how.new_tokens == 0) {
    runtime.kv_bytes = std::max(runtime.kv_bytes, kLeastCache);
    runtime.limits.rollout_rows = kStepTokens;
  }
}

}  // namespace

BenchModel::BenchModel(const EngineBenchOptions& options, StepProfile& profile)
    : options_(options), profile_(profile), state_(kSeed) {}

void BenchModel::Discard::on_rollout(engines::RolloutResult result) {
  if (result.finish_reason == engines::FinishReason::kFailed) {
    error = result.error;
  }
  tokens += std::ssize(result.response_ids);
}

Status BenchModel::open(const BenchModelOptions& how) {
  runtime_.reset();
  reset_peak_memory();
  const double before = peak_memory_bytes();
  TIDEMILL_ASSIGN_OR_RETURN(const ModelFiles files,
                            options_.model(engines::cache_type(how.compute), how.preset));
  RuntimeOptions runtime;
  runtime.share_prefixes = how.share_prefixes;
  runtime.threads = options_.threads;
  runtime.compute = how.compute;
  runtime.kv_dtype = engines::cache_type(how.compute);
  runtime.recompute = how.recompute;
  runtime.window_tokens = how.window_tokens;
  runtime.adapter_bytes = how.num_adapters > 0 ? std::int64_t{2} << 30U : 0;
  runtime.profile = &profile_.ops;
  if (how.training == Training::kAdapter) {
    TIDEMILL_ASSIGN_OR_RETURN(
        runtime.adapter, engines::make_adapter(bench_adapter_config(), files, how.compute, kSeed));
  }
  if (how.training != Training::kNone) {
    runtime.optimizer.emplace();
  }
  config_ = files.config;
  how_ = how;
  batch_ = how.batch;
  const engines::MemoryLoad load = load_of(how);
  set_room(files.config, how, load, runtime);
  expected_bytes_ =
      before + static_cast<double>(engines::estimate_memory(files, runtime, load).total());
  TIDEMILL_ASSIGN_OR_RETURN(runtime_, engines::open_runtime(files, runtime));
  return load_bench_adapters(files, how.num_adapters, runtime_->adapters());
}

Result<double> BenchModel::decode(std::int64_t steps, std::int64_t num_adapters) {
  TIDEMILL_RETURN_IF_ERROR(submit(kPromptTokens, steps + 2, num_adapters));
  auto& rollout = runtime_->rollout();
  std::int64_t timed = 0;
  double seconds = 0.0;
  while (rollout.has_work()) {
    const double start = begin_step();
    TIDEMILL_ASSIGN_OR_RETURN(const engines::StepReport report, rollout.step({kStepTokens}));
    const bool counts = report.prefill_tokens == 0 && report.decode_tokens == batch_;
    seconds += end_step(start, counts);
    timed += counts ? report.decode_tokens : 0;
  }
  peak_bytes_ = peak_memory_bytes();
  return finish(static_cast<double>(timed), seconds);
}

Result<double> BenchModel::prefill(std::int64_t tokens) {
  TIDEMILL_RETURN_IF_ERROR(submit(tokens, 1));
  auto& rollout = runtime_->rollout();
  double seconds = 0.0;
  while (rollout.has_work()) {
    const double start = begin_step();
    TIDEMILL_ASSIGN_OR_RETURN(const engines::StepReport report, rollout.step({kStepTokens}));
    seconds += end_step(start, true);
    (void)report;
  }
  return finish(static_cast<double>(tokens * batch_), seconds);
}

Result<double> BenchModel::group(std::int64_t prompt, std::int64_t new_tokens,
                                 std::int64_t& prompt_tokens) {
  sink_ = Discard{};
  const std::vector<std::int32_t> ids = random_ids(prompt, config_.vocab_size, state_);
  for (std::int64_t i = 0; i < batch_; ++i) {
    TIDEMILL_RETURN_IF_ERROR(submit_one(ids, new_tokens));
  }
  auto& rollout = runtime_->rollout();
  prompt_tokens = 0;
  const double start = begin_step();
  while (rollout.has_work()) {
    TIDEMILL_ASSIGN_OR_RETURN(const engines::StepReport report, rollout.step({kStepTokens}));
    prompt_tokens += report.prefill_tokens;
  }
  return finish(static_cast<double>(new_tokens * batch_), end_step(start, true));
}

Result<double> BenchModel::rollout() {
  TIDEMILL_RETURN_IF_ERROR(submit(how_.prompt_tokens, how_.new_tokens));
  auto& rollout = runtime_->rollout();
  const double start = begin_step();
  while (rollout.has_work()) {
    TIDEMILL_RETURN_IF_ERROR(rollout.step({kStepTokens}).status());
  }
  const double seconds = end_step(start, true);
  peak_bytes_ = peak_memory_bytes();
  const std::int64_t expected = batch_ * how_.new_tokens;
  if (sink_.error.empty() && sink_.tokens != expected) {
    return Status(Errc::kInternal, std::to_string(sink_.tokens) + " tokens generated, " +
                                       std::to_string(expected) + " expected");
  }
  return finish(static_cast<double>(expected), seconds);
}

Result<double> BenchModel::train() {
  const double start = begin_step();
  TIDEMILL_RETURN_IF_ERROR(begin_training(batch_));
  engines::TrainingJob& job = *runtime_->policy_job();
  while (job.has_work()) {
    TIDEMILL_RETURN_IF_ERROR(job.advance({kStepTokens}).status());
  }
  TIDEMILL_RETURN_IF_ERROR(job.optim_step());
  TIDEMILL_RETURN_IF_ERROR(engines::run_to_end(job));
  const double seconds = end_step(start, true);
  peak_bytes_ = peak_memory_bytes();
  return static_cast<double>(batch_ * how_.train_tokens) / seconds;
}

Result<double> BenchModel::train_unit() {
  engines::TrainingJob& job = *runtime_->policy_job();
  std::vector<double> seconds;
  const auto run = [&]() -> Status {
    engines::StepBudget one;
    one.units = 1;
    while (job.has_work()) {
      const double start = begin_step();
      TIDEMILL_RETURN_IF_ERROR(job.advance(one).status());
      seconds.push_back(end_step(start, true));
    }
    return {};
  };
  TIDEMILL_RETURN_IF_ERROR(begin_training(batch_));
  TIDEMILL_RETURN_IF_ERROR(run());
  TIDEMILL_RETURN_IF_ERROR(job.optim_step());
  TIDEMILL_RETURN_IF_ERROR(run());
  std::ranges::sort(seconds);
  longest_unit_ = 1e3 * seconds.back();
  return 1e3 * seconds[(seconds.size() - 1) * 99 / 100];
}

Result<double> BenchModel::share() {
  constexpr std::int64_t kSequences = 2;
  constexpr int kAlone = 24;  // iterations of decoding
  const auto trained = static_cast<double>(kSequences * how_.train_tokens);
  engines::RolloutEngine& rollout = runtime_->rollout();
  engines::TrainingJob& job = *runtime_->policy_job();
  engines::ExecutorOptions shares;
  shares.train_tokens = how_.train_tokens;
  engines::Executor executor(&rollout, shares);
  executor.add(job);
  // Enough tokens for all measurements: no request ends before it is cancelled.
  const std::uint64_t first_id = next_id_;
  TIDEMILL_RETURN_IF_ERROR(
      submit(kPromptTokens, kAlone + 8 * kSequences * how_.train_tokens / batch_));
  for (bool all = false; !all;) {
    TIDEMILL_ASSIGN_OR_RETURN(const engines::StepReport report, report_of(executor.iterate()));
    all = report.prefill_tokens == 0 && report.decode_tokens == batch_;
  }
  double start = begin_step();
  for (int i = 0; i < kAlone; ++i) {
    TIDEMILL_RETURN_IF_ERROR(report_of(executor.iterate()).status());
  }
  const double decode_alone = static_cast<double>(kAlone * batch_) / end_step(start, true);

  std::int64_t decoded = 0;
  start = begin_step();
  TIDEMILL_RETURN_IF_ERROR(begin_training(kSequences));
  while (job.has_work()) {
    TIDEMILL_ASSIGN_OR_RETURN(const engines::StepReport report, report_of(executor.iterate()));
    decoded += report.decode_tokens;
  }
  TIDEMILL_RETURN_IF_ERROR(job.optim_step());
  TIDEMILL_RETURN_IF_ERROR(engines::run_to_end(job));
  const double together = end_step(start, true);

  for (std::uint64_t id = first_id; id < next_id_; ++id) {
    rollout.cancel(SampleId{id});
  }
  while (rollout.has_work()) {
    TIDEMILL_RETURN_IF_ERROR(rollout.step({kStepTokens}).status());
  }
  start = begin_step();
  TIDEMILL_RETURN_IF_ERROR(begin_training(kSequences));
  while (job.has_work()) {
    TIDEMILL_RETURN_IF_ERROR(report_of(executor.iterate()).status());
  }
  TIDEMILL_RETURN_IF_ERROR(job.optim_step());
  TIDEMILL_RETURN_IF_ERROR(engines::run_to_end(job));
  const double train_alone = trained / end_step(start, true);
  return static_cast<double>(decoded) / together / decode_alone + trained / together / train_alone;
}

// Starts a batch of `sequences` sequences of `train_tokens` tokens.
Status BenchModel::begin_training(std::int64_t sequences) {
  engines::TrainingJob& job = *runtime_->policy_job();
  loss_ = std::make_unique<engines::SftTokenLoss>(
      engines::BatchCounts{.tokens = sequences * how_.train_tokens});
  engines::TrainBatch batch;
  for (std::int64_t i = 0; i < sequences; ++i) {
    TrainSequence sequence;
    sequence.id = SampleId{static_cast<std::uint64_t>(i)};
    sequence.ids = random_ids(how_.train_tokens + 1, config_.vocab_size, state_);
    sequence.response_mask.assign(sequence.ids.size(), 1);
    sequence.response_mask[0] = 0;
    batch.sequences.push_back(std::move(sequence));
  }
  return job.forward_backward(std::move(batch), *loss_);
}

Status BenchModel::submit(std::int64_t prompt, std::int64_t new_tokens, std::int64_t num_adapters) {
  sink_ = Discard{};
  for (std::int64_t i = 0; i < batch_; ++i) {
    TIDEMILL_RETURN_IF_ERROR(
        submit_one(random_ids(prompt, config_.vocab_size, state_), new_tokens,
                   num_adapters > 0 ? bench_adapter_name(i % num_adapters) : std::string()));
  }
  return {};
}

Status BenchModel::submit_one(std::vector<std::int32_t> prompt, std::int64_t new_tokens,
                              std::string adapter) {
  RolloutRequest request;
  request.adapter = std::move(adapter);
  request.id = SampleId{next_id_++};
  request.prompt_ids = std::move(prompt);
  request.max_new_tokens = static_cast<std::int32_t>(new_tokens);
  request.seed = kSeed;
  request.sampling = how_.sampling;
  return runtime_->rollout().submit(std::move(request), sink_);
}

double BenchModel::begin_step() {
  kept_ = profile_.ops;
  return now();
}

// Removes steps that do not count from the profile.
double BenchModel::end_step(double start, bool counts) {
  const double seconds = now() - start;
  if (!counts) {
    profile_.ops = kept_;
    return 0.0;
  }
  profile_.seconds += seconds;
  return seconds;
}

Result<double> BenchModel::finish(double tokens, double seconds) const {
  if (!sink_.error.empty()) {
    return Status(Errc::kInternal, sink_.error);
  }
  return tokens / seconds;
}

}  // namespace tidemill::bench
