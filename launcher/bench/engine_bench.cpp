// SPDX-License-Identifier: Apache-2.0
#include "launcher/bench/engine_bench.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <utility>

#include "engines/rl/sft_token_loss.hpp"
#include "engines/runtime/factory.hpp"
#include "launcher/bench/foreign_load.hpp"
#include "launcher/bench/peak_memory.hpp"

namespace tidemill::launcher {
namespace {

using engines::ModelConfig;
using engines::ModelFiles;
using engines::ModelRuntime;
using engines::RolloutRequest;
using engines::RuntimeOptions;
using engines::TrainSequence;

constexpr double kMostForeignLoad = 0.05;
constexpr double kPeakSeconds = 0.4;
constexpr int kRepetitions = 5;
constexpr std::int64_t kPromptTokens = 16;
constexpr std::int64_t kTrainTokens = 512;
constexpr std::uint64_t kSeed = 7;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// -- what a step costs at least ------------------------------------------------------------------

// Multiply-adds of one token through all linear layers, counted twice; the head apart.
struct ModelCost {
  double layers = 0.0;
  double head = 0.0;
  double query_cols = 0.0;
  double num_layers = 0.0;
  double weights = 0.0;  // elements read for one token

  explicit ModelCost(const ModelConfig& config) {
    const auto d = static_cast<double>(config.hidden_size);
    const auto kv = static_cast<double>(config.num_kv_heads * config.head_dim);
    const auto f = static_cast<double>(config.intermediate_size);
    query_cols = static_cast<double>(config.num_heads * config.head_dim);
    num_layers = static_cast<double>(config.num_layers);
    const double parameters = num_layers * (2.0 * d * query_cols + 2.0 * d * kv + 3.0 * d * f);
    head = 2.0 * d * static_cast<double>(config.vocab_size);
    layers = 2.0 * parameters;
    weights = parameters + head / 2.0;
  }

  // Causal attention over `tokens` tokens: `products` products with each position seen.
  [[nodiscard]] double attention(double tokens, double products) const {
    return 2.0 * products * query_cols * num_layers * tokens * (tokens + 1.0) / 2.0;
  }
};

// Whole numbers are compared with the peak of bf16 too.
double flops_of(const engines::MachinePeaks& peaks, DType compute) {
  return compute == DType::kF32 ? peaks.f32_flops : peaks.bf16_flops;
}

double bytes_of_weights(const ModelConfig& config, DType compute) {
  return ModelCost(config).weights * static_cast<double>(dtype_block_bytes(compute)) /
         static_cast<double>(dtype_block_elements(compute));
}

// -- work ----------------------------------------------------------------------------------------

class Discard final : public engines::RolloutSink {
public:
  void on_rollout(engines::RolloutResult result) override {
    ++finished;
    if (result.finish_reason == engines::FinishReason::kFailed) {
      error = result.error;
    }
  }
  int finished = 0;
  std::string error;
};

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

// A model that is open for one figure, and what of its steps is measured.
class Bench {
public:
  Bench(const EngineBenchOptions& options, StepProfile& profile)
      : options_(options), profile_(profile) {}

  // `training`: of all parameters, or of a new adapter of rank 16 on all linear layers.
  enum class Training { kNone, kAdapter, kAll };

  Status open(DType compute, Training training, std::int64_t batch, bool share_prefixes = true) {
    runtime_.reset();
    reset_peak_memory();
    TIDEMILL_ASSIGN_OR_RETURN(const ModelFiles files, options_.model(engines::cache_type(compute)));
    RuntimeOptions runtime;
    runtime.share_prefixes = share_prefixes;
    runtime.threads = options_.threads;
    runtime.compute = compute;
    runtime.kv_dtype = engines::cache_type(compute);
    runtime.kv_bytes = std::int64_t{512} << 20U;
    runtime.activation_bytes = std::int64_t{8} << 30U;
    runtime.profile = &profile_.ops;
    if (training == Training::kAdapter) {
      engines::AdapterConfig adapter;
      adapter.rank = 16;
      adapter.alpha = 32.0;
      adapter.targets = {engines::ModuleSelector::Kind::kAllLinear, {}, {}};
      TIDEMILL_ASSIGN_OR_RETURN(runtime.adapter, engines::make_adapter(adapter, files, kSeed));
    }
    if (training != Training::kNone) {
      runtime.optimizer.emplace();
    }
    config_ = files.config;
    batch_ = batch;
    TIDEMILL_ASSIGN_OR_RETURN(runtime_, engines::open_runtime(files, runtime));
    return {};
  }

  [[nodiscard]] const ModelConfig& config() const { return config_; }

  // Tokens per second of `batch` requests decoding together.
  Result<double> decode(std::int64_t steps) {
    TIDEMILL_RETURN_IF_ERROR(submit(kPromptTokens, steps + 2));
    auto& rollout = runtime_->rollout();
    std::int64_t timed = 0;
    double seconds = 0.0;
    while (rollout.has_work()) {
      const double start = begin_step();
      TIDEMILL_ASSIGN_OR_RETURN(const engines::StepReport report, rollout.step({4096}));
      const bool counts = report.prefill_tokens == 0 && report.decode_tokens == batch_;
      seconds += end_step(start, counts);
      timed += counts ? report.decode_tokens : 0;
    }
    return finish(static_cast<double>(timed), seconds);
  }

  // Tokens per second of prompts of `tokens` tokens, up to their first new token.
  Result<double> prefill(std::int64_t tokens) {
    TIDEMILL_RETURN_IF_ERROR(submit(tokens, 1));
    auto& rollout = runtime_->rollout();
    double seconds = 0.0;
    while (rollout.has_work()) {
      const double start = begin_step();
      TIDEMILL_ASSIGN_OR_RETURN(const engines::StepReport report, rollout.step({4096}));
      seconds += end_step(start, true);
      (void)report;
    }
    return finish(static_cast<double>(tokens * batch_), seconds);
  }

  // Tokens generated per second by `batch` samples of one prompt of `prompt` tokens, its
  // computation included. `prompt_tokens` says how many tokens of prompts were computed.
  Result<double> group(std::int64_t prompt, std::int64_t new_tokens, std::int64_t& prompt_tokens) {
    sink_ = Discard{};
    const std::vector<std::int32_t> ids = random_ids(prompt, config_.vocab_size, state_);
    for (std::int64_t i = 0; i < batch_; ++i) {
      TIDEMILL_RETURN_IF_ERROR(submit_one(ids, new_tokens));
    }
    auto& rollout = runtime_->rollout();
    prompt_tokens = 0;
    const double start = begin_step();
    while (rollout.has_work()) {
      TIDEMILL_ASSIGN_OR_RETURN(const engines::StepReport report, rollout.step({4096}));
      prompt_tokens += report.prefill_tokens;
    }
    return finish(static_cast<double>(new_tokens * batch_), end_step(start, true));
  }

  // Tokens per second of an optimizer step on `batch` sequences of `kTrainTokens`.
  Result<double> train() {
    engines::TrainEngine& train = *runtime_->train();
    engines::SftTokenLoss loss(batch_ * kTrainTokens);
    std::vector<TrainSequence> sequences;
    for (std::int64_t i = 0; i < batch_; ++i) {
      TrainSequence sequence;
      sequence.id = SampleId{static_cast<std::uint64_t>(i)};
      sequence.ids = random_ids(kTrainTokens + 1, config_.vocab_size, state_);
      sequence.response_mask.assign(sequence.ids.size(), 1);
      sequence.response_mask[0] = 0;
      sequences.push_back(std::move(sequence));
    }
    const double start = begin_step();
    TIDEMILL_RETURN_IF_ERROR(train.begin_batch(&loss, 1.0F));
    for (TrainSequence& sequence : sequences) {
      TIDEMILL_RETURN_IF_ERROR(train.add(std::move(sequence)));
    }
    while (train.has_work()) {
      const auto report = train.step({4096});
      TIDEMILL_RETURN_IF_ERROR(report.status());
    }
    TIDEMILL_RETURN_IF_ERROR(train.update().status());
    return static_cast<double>(batch_ * kTrainTokens) / end_step(start, true);
  }

private:
  Status submit(std::int64_t prompt, std::int64_t new_tokens) {
    sink_ = Discard{};
    for (std::int64_t i = 0; i < batch_; ++i) {
      TIDEMILL_RETURN_IF_ERROR(
          submit_one(random_ids(prompt, config_.vocab_size, state_), new_tokens));
    }
    return {};
  }

  Status submit_one(std::vector<std::int32_t> prompt, std::int64_t new_tokens) {
    RolloutRequest request;
    request.id = SampleId{next_id_++};
    request.prompt_ids = std::move(prompt);
    request.max_new_tokens = static_cast<std::int32_t>(new_tokens);
    request.seed = kSeed;
    return runtime_->rollout().submit(std::move(request), sink_);
  }

  double begin_step() {
    kept_ = profile_.ops;
    return now();
  }

  // Steps that do not count leave no trace in the profile.
  double end_step(double start, bool counts) {
    const double seconds = now() - start;
    if (!counts) {
      profile_.ops = kept_;
      return 0.0;
    }
    profile_.seconds += seconds;
    return seconds;
  }

  [[nodiscard]] Result<double> finish(double tokens, double seconds) const {
    if (!sink_.error.empty()) {
      return Status(Errc::kInternal, sink_.error);
    }
    return tokens / seconds;
  }

  const EngineBenchOptions& options_;
  StepProfile& profile_;
  engines::OpProfile kept_;
  ModelConfig config_;
  std::int64_t batch_ = 1;
  std::unique_ptr<ModelRuntime> runtime_;
  Discard sink_;
  std::uint64_t next_id_ = 0;
  std::uint64_t state_ = kSeed;
};

// -- figures -------------------------------------------------------------------------------------

struct FigureSpec {
  const char* name;
  DType compute;
  Bench::Training training;
  std::int64_t batch;
  const char* unit;
  const char* peer;
  Result<double> (*run)(Bench& bench);
  // What it is compared with, once it has been measured.
  Result<double> (*peer_value)(Bench& bench, const engines::MachinePeaks& peaks,
                               const FigureSpec& spec);
};

constexpr const char* kSpeed = "tok/s";
constexpr const char* kReads = "memory bandwidth";
constexpr const char* kMatmul = "matmul peak";

Result<double> decode_few(Bench& bench) {
  return bench.decode(48);
}
Result<double> decode_many(Bench& bench) {
  return bench.decode(12);
}
Result<double> prefill(Bench& bench) {
  return bench.prefill(kTrainTokens);
}
Result<double> train(Bench& bench) {
  return bench.train();
}

Result<double> read_limit(Bench& bench, const engines::MachinePeaks& peaks,
                          const FigureSpec& spec) {
  return peaks.bytes_per_second / bytes_of_weights(bench.config(), spec.compute);
}

Result<double> decode_limit(Bench& bench, const engines::MachinePeaks& peaks,
                            const FigureSpec& spec) {
  const ModelCost cost(bench.config());
  return flops_of(peaks, spec.compute) / (cost.layers + cost.head);
}

Result<double> prefill_limit(Bench& bench, const engines::MachinePeaks& peaks,
                             const FigureSpec& spec) {
  const ModelCost cost(bench.config());
  const double tokens = kTrainTokens;
  const double flops = tokens * cost.layers + cost.head + cost.attention(tokens, 2.0);
  return tokens * flops_of(peaks, spec.compute) / flops;
}

// 2N forward, 2N for input gradients, and 2N more for weights that are trained; attention has two
// products forward and four backward.
Result<double> train_limit(Bench& bench, const engines::MachinePeaks& peaks,
                           const FigureSpec& spec) {
  const ModelCost cost(bench.config());
  const double tokens = kTrainTokens;
  const double passes = spec.training == Bench::Training::kAll ? 3.0 : 2.0;
  const double flops = passes * tokens * (cost.layers + cost.head) + cost.attention(tokens, 6.0);
  return tokens * flops_of(peaks, spec.compute) / flops;
}

constexpr std::int64_t kGroupPrompt = 256;
constexpr std::int64_t kGroupNewTokens = 32;

Result<double> run_group(Bench& bench, std::int64_t expected_prompt_tokens) {
  std::int64_t prompt_tokens = 0;
  auto speed = bench.group(kGroupPrompt, kGroupNewTokens, prompt_tokens);
  if (speed.ok() && prompt_tokens != expected_prompt_tokens) {
    return Status(Errc::kInternal, std::to_string(prompt_tokens) + " tokens of prompts computed, " +
                                       std::to_string(expected_prompt_tokens) + " expected");
  }
  return speed;
}

Result<double> group(Bench& bench) {
  return run_group(bench, kGroupPrompt);
}

Result<double> group_without_sharing(Bench& bench, const engines::MachinePeaks& /*peaks*/,
                                     const FigureSpec& spec) {
  TIDEMILL_RETURN_IF_ERROR(bench.open(spec.compute, spec.training, spec.batch, false));
  double best = 0.0;
  for (int i = 0; i < 3; ++i) {
    TIDEMILL_ASSIGN_OR_RETURN(const double speed, run_group(bench, kGroupPrompt * spec.batch));
    best = std::max(best, speed);
  }
  return best;
}

// The most memory of the process since the model was opened. For a process that measures nothing
// else; weights that were made up count, those of files only as far as they are computed with.
Result<double> peak_memory(Bench& bench) {
  TIDEMILL_RETURN_IF_ERROR(bench.train().status());
  return peak_memory_bytes();
}

Result<double> weight_bytes(Bench& bench, const engines::MachinePeaks& /*peaks*/,
                            const FigureSpec& spec) {
  return bytes_of_weights(bench.config(), spec.compute);
}

constexpr auto kNone = Bench::Training::kNone;
constexpr auto kAdapter = Bench::Training::kAdapter;
constexpr auto kAll = Bench::Training::kAll;
constexpr auto kF32 = DType::kF32;
constexpr auto kBF16 = DType::kBF16;
constexpr auto kInt8 = DType::kBlockI8;

const FigureSpec kFigures[] = {
    {"decode_b1_f32", kF32, kNone, 1, kSpeed, kReads, decode_few, read_limit},
    {"decode_b1_bf16", kBF16, kNone, 1, kSpeed, kReads, decode_few, read_limit},
    {"decode_b1_int8", kInt8, kNone, 1, kSpeed, kReads, decode_few, read_limit},
    {"prefill_512_f32", kF32, kNone, 1, kSpeed, kMatmul, prefill, prefill_limit},
    {"prefill_512_bf16", kBF16, kNone, 1, kSpeed, kMatmul, prefill, prefill_limit},
    {"prefill_512_int8", kInt8, kNone, 1, kSpeed, "matmul peak in bf16", prefill, prefill_limit},
    {"decode_16_bf16", kBF16, kNone, 16, kSpeed, kMatmul, decode_many, decode_limit},
    {"decode_64_bf16", kBF16, kNone, 64, kSpeed, kMatmul, decode_many, decode_limit},
    {"group_rollout", kBF16, kNone, 8, kSpeed, "without sharing", group, group_without_sharing},
    {"lora_step_f32_b1", kF32, kAdapter, 1, kSpeed, kMatmul, train, train_limit},
    {"lora_step_f32_b4", kF32, kAdapter, 4, kSpeed, kMatmul, train, train_limit},
    {"lora_step_bf16_b1", kBF16, kAdapter, 1, kSpeed, kMatmul, train, train_limit},
    {"lora_step_bf16_b4", kBF16, kAdapter, 4, kSpeed, kMatmul, train, train_limit},
    {"full_step_f32", kF32, kAll, 1, kSpeed, kMatmul, train, train_limit},
    {"lora_peak_bytes_f32_b1", kF32, kAdapter, 1, "bytes", "weights", peak_memory, weight_bytes},
    {"lora_peak_bytes_bf16_b1", kBF16, kAdapter, 1, "bytes", "weights", peak_memory, weight_bytes},
    {"lora_peak_bytes_bf16_b4", kBF16, kAdapter, 4, "bytes", "weights", peak_memory, weight_bytes},
    {"full_peak_bytes_f32_b1", kF32, kAll, 1, "bytes", "weights", peak_memory, weight_bytes},
};

// One repetition, and what others did meanwhile.
struct Repetition {
  double value = 0.0;
  double foreign_load = 0.0;
};

// Runs the figure until enough repetitions were undisturbed, or patience ends; their median.
Result<Repetition> undisturbed_median(const FigureSpec& spec, const EngineBenchOptions& options,
                                      Bench& bench, StepProfile& profile) {
  std::vector<Repetition> repetitions;
  for (int disturbed = 0; repetitions.size() < kRepetitions;) {
    const StepProfile before = profile;
    const ForeignLoad watch;
    TIDEMILL_ASSIGN_OR_RETURN(const double value, spec.run(bench));
    const double load = watch.share();
    if (load > kMostForeignLoad && disturbed < options.patience * kRepetitions) {
      ++disturbed;
      profile = before;
      continue;
    }
    repetitions.push_back({value, load});
  }
  std::ranges::sort(repetitions, {}, &Repetition::value);
  return repetitions[repetitions.size() / 2];
}

Result<Figure> measure(const FigureSpec& spec, const EngineBenchOptions& options,
                       StepProfile& profile) {
  {
    engines::Workers workers(options.threads);
    TIDEMILL_ASSIGN_OR_RETURN(profile.peaks, engines::measure_peaks(workers, kPeakSeconds));
  }
  Bench bench(options, profile);
  TIDEMILL_RETURN_IF_ERROR(bench.open(spec.compute, spec.training, spec.batch));
  TIDEMILL_RETURN_IF_ERROR(spec.run(bench).status());  // pages are touched, buffers grown
  profile.ops = {};
  profile.seconds = 0.0;
  TIDEMILL_ASSIGN_OR_RETURN(const Repetition median,
                            undisturbed_median(spec, options, bench, profile));
  Figure figure{spec.name, median.value,    spec.unit,          spec.peer,
                0.0,       options.threads, median.foreign_load};
  const StepProfile own = profile;
  TIDEMILL_ASSIGN_OR_RETURN(figure.peer_value, spec.peer_value(bench, profile.peaks, spec));
  profile = own;
  return figure;
}

}  // namespace

std::vector<std::string> engine_figures() {
  std::vector<std::string> names;
  for (const FigureSpec& spec : kFigures) {
    names.emplace_back(spec.name);
  }
  return names;
}

Status run_engine_bench(const EngineBenchOptions& options,
                        const std::function<void(const Figure&)>& report,
                        const std::function<void(const Figure&, const StepProfile&)>& profiled) {
  for (const std::string& name : options.figures) {
    if (std::ranges::find(kFigures, name, &FigureSpec::name) == std::end(kFigures)) {
      return invalid_argument("--figure: there is no figure \"" + name + "\"");
    }
  }
  for (const FigureSpec& spec : kFigures) {
    if (!options.figures.empty() &&
        std::ranges::find(options.figures, spec.name) == options.figures.end()) {
      continue;
    }
    StepProfile profile;
    auto figure = measure(spec, options, profile);
    if (!figure.ok()) {
      return figure.status().with_context(spec.name);
    }
    report(figure.value());
    if (profiled) {
      profiled(figure.value(), profile);
    }
  }
  return {};
}

}  // namespace tidemill::launcher
