// SPDX-License-Identifier: Apache-2.0
// Opens the model of a figure, gives it work, and measures its steps.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/engine_bench.hpp"
#include "engines/rl/sft_token_loss.hpp"
#include "engines/runtime/model_runtime.hpp"
#include "engines/sampling/sampling_options.hpp"

namespace tidemill::bench {

/// Which parameters are trained: none, a new adapter of rank 16 on all linear layers, or all.
enum class Training { kNone, kAdapter, kAll };

/// How to open the model of a figure.
struct BenchModelOptions {
  DType compute = DType::kF32;
  Training training = Training::kNone;
  std::int64_t batch = 1;  // requests, or sequences of a training batch
  bool share_prefixes = true;
  const char* preset = "197m";  // used unless the user names a model
  engines::Recompute recompute = engines::Recompute::kNone;
  std::int64_t num_adapters = 0;    // loaded by `load_bench_adapters`
  std::int64_t window_tokens = 0;   // `RuntimeOptions::window_tokens`
  std::int64_t train_tokens = 512;  // of a training sequence
  /// Tokens of each request, for which there is room and which the memory plan counts.
  std::int64_t prompt_tokens = 0;
  std::int64_t new_tokens = 0;
  engines::SamplingOptions sampling{};
};

/// Opens a model and gives it work. The steps add to the profile passed to the constructor.
/// Threads: one at a time.
class BenchModel {
public:
  /// Tokens of the prompts for prefill, and of a training sequence unless a figure chooses others.
  static constexpr std::int64_t kTrainTokens = 512;
  /// Tokens of the prompts for decoding.
  static constexpr std::int64_t kPromptTokens = 16;

  /// Borrows both arguments for its lifetime.
  BenchModel(const EngineBenchOptions& options, StepProfile& profile);

  /// Opens the model, closing the previous one. Errors: those of the engine.
  [[nodiscard]] Status open(const BenchModelOptions& how);
  [[nodiscard]] const engines::ModelConfig& config() const { return config_; }
  [[nodiscard]] const EngineBenchOptions& options() const { return options_; }
  /// Returns the estimate of the memory that the work needs, made before the model was opened.
  /// Includes the memory of the process at that time. Units: bytes.
  [[nodiscard]] double expected_bytes() const { return expected_bytes_; }
  /// Returns the peak memory of the process from the opening of the model to the end of the last
  /// `decode`, `rollout` or `train`. Units: bytes.
  [[nodiscard]] double peak_bytes() const { return peak_bytes_; }

  /// Returns the profile that the steps add to.
  [[nodiscard]] StepProfile& profile() { return profile_; }
  /// Returns the peer values that a figure measures alternately with its own values.
  [[nodiscard]] std::vector<double>& peer_values() { return peer_values_; }
  /// Returns the notes that are reported with the figure.
  [[nodiscard]] std::vector<FigureNote>& notes() { return notes_; }

  /// Returns the tokens per second of `batch` requests that decode `steps` tokens together. The
  /// requests use the first `num_adapters` adapters in turn, or none if that is 0.
  [[nodiscard]] Result<double> decode(std::int64_t steps, std::int64_t num_adapters = 0);
  /// Returns the prompt tokens per second of prompts of `tokens` tokens, up to their first new
  /// token.
  [[nodiscard]] Result<double> prefill(std::int64_t tokens);
  /// Returns the tokens per second that `batch` samples of one prompt of `prompt` tokens generate,
  /// including the time for the prompt. Stores in `prompt_tokens` how many prompt tokens were
  /// computed.
  [[nodiscard]] Result<double> group(std::int64_t prompt, std::int64_t new_tokens,
                                     std::int64_t& prompt_tokens);
  /// Returns the tokens per second that `batch` requests generate, each `new_tokens` tokens after a
  /// prompt of its own of `prompt_tokens` tokens, including the time for the prompts.
  [[nodiscard]] Result<double> rollout();
  /// Returns the tokens per second of an optimizer step on `batch` sequences of `train_tokens`
  /// tokens.
  [[nodiscard]] Result<double> train();
  /// Takes an optimizer step on `batch` sequences unit by unit. Returns the milliseconds of the
  /// unit that 99 of 100 units do not exceed.
  [[nodiscard]] Result<double> train_unit();
  /// Returns the milliseconds of the longest unit of the last `train_unit`.
  [[nodiscard]] double longest_unit() const { return longest_unit_; }
  /// Lets `batch` requests decode during an optimizer step on two sequences of `train_tokens`
  /// tokens, each a micro-batch, with equal shares. Returns the sum of both rates, each relative to
  /// its rate alone: decoding alone is measured before, training alone afterwards.
  [[nodiscard]] Result<double> share();

private:
  class Discard final : public engines::RolloutSink {
  public:
    void on_rollout(engines::RolloutResult result) override;
    std::string error;
    std::int64_t tokens = 0;  // of all responses
  };

  Status begin_training(std::int64_t sequences);
  Status submit(std::int64_t prompt, std::int64_t new_tokens, std::int64_t num_adapters = 0);
  Status submit_one(std::vector<std::int32_t> prompt, std::int64_t new_tokens,
                    std::string adapter = {});
  double begin_step();
  double end_step(double start, bool counts);
  [[nodiscard]] Result<double> finish(double tokens, double seconds) const;

  const EngineBenchOptions& options_;
  StepProfile& profile_;
  std::vector<double> peer_values_;
  engines::OpProfile kept_;
  std::vector<FigureNote> notes_;
  engines::ModelConfig config_;
  BenchModelOptions how_;
  std::int64_t batch_ = 1;
  double expected_bytes_ = 0.0;
  double peak_bytes_ = 0.0;
  double longest_unit_ = 0.0;
  std::unique_ptr<engines::ModelRuntime> runtime_;
  std::unique_ptr<engines::SftTokenLoss> loss_;
  Discard sink_;
  std::uint64_t next_id_ = 0;
  std::uint64_t state_;
};

}  // namespace tidemill::bench
