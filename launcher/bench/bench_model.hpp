// SPDX-License-Identifier: Apache-2.0
// A model that is open for one figure, the work it is given, and what of its steps is measured.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engines/rl/sft_token_loss.hpp"
#include "engines/runtime/factory.hpp"
#include "launcher/bench/engine_bench.hpp"

namespace tidemill::launcher {

/// Which parameters are trained: none, a new adapter of rank 16 on all linear layers, or all.
enum class Training { kNone, kAdapter, kAll };

/// How a model is opened for a figure.
struct BenchModelOptions {
  DType compute = DType::kF32;
  Training training = Training::kNone;
  std::int64_t batch = 1;  // requests, or sequences of a training batch
  bool share_prefixes = true;
  const char* preset = "197m";  // where no model is asked for
  engines::Recompute recompute = engines::Recompute::kNone;
  std::int64_t num_adapters = 0;  // loaded by name, see `load_bench_adapters`
};

/// Opens a model and gives it work; steps add to the profile it was made with.
/// Threads: one at a time.
class BenchModel {
public:
  /// Tokens of a training sequence, and of the prompts that prefill is measured on.
  static constexpr std::int64_t kTrainTokens = 512;

  /// Borrows both for its life.
  BenchModel(const EngineBenchOptions& options, StepProfile& profile);

  /// Opens the model anew. Errors: those of the engine.
  [[nodiscard]] Status open(const BenchModelOptions& how);
  [[nodiscard]] const engines::ModelConfig& config() const { return config_; }
  [[nodiscard]] const EngineBenchOptions& options() const { return options_; }
  /// Returns what training was expected to take, before the model was opened, the memory of the
  /// process at that time included.
  [[nodiscard]] double expected_bytes() const { return expected_bytes_; }

  /// Returns where steps are written down.
  [[nodiscard]] StepProfile& profile() { return profile_; }
  /// Returns what a figure keeps of measurements that it takes in turn with its own.
  [[nodiscard]] std::vector<double>& peer_values() { return peer_values_; }

  /// Returns the tokens per second of `batch` requests that decode `steps` tokens together. They
  /// name the first `num_adapters` adapters in turn; none if that is 0.
  [[nodiscard]] Result<double> decode(std::int64_t steps, std::int64_t num_adapters = 0);
  /// Returns the tokens per second of prompts of `tokens` tokens, up to their first new token.
  [[nodiscard]] Result<double> prefill(std::int64_t tokens);
  /// Returns the tokens generated per second by `batch` samples of one prompt of `prompt` tokens,
  /// its computation included. `prompt_tokens` says how many tokens of prompts were computed.
  [[nodiscard]] Result<double> group(std::int64_t prompt, std::int64_t new_tokens,
                                     std::int64_t& prompt_tokens);
  /// Returns the tokens per second of an optimizer step on `batch` sequences of `kTrainTokens`.
  [[nodiscard]] Result<double> train();
  /// Lets `batch` requests decode while an optimizer step is made on two sequences of
  /// `kTrainTokens`, one a micro-batch, with equal shares. Returns the sum of the two rates, each
  /// divided by what it is alone: measured before (decoding) and after (training).
  [[nodiscard]] Result<double> share();

private:
  class Discard final : public engines::RolloutSink {
  public:
    void on_rollout(engines::RolloutResult result) override;
    std::string error;
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
  engines::ModelConfig config_;
  std::int64_t batch_ = 1;
  double expected_bytes_ = 0.0;
  std::unique_ptr<engines::ModelRuntime> runtime_;
  std::unique_ptr<engines::SftTokenLoss> loss_;
  Discard sink_;
  std::uint64_t next_id_ = 0;
  std::uint64_t state_;
};

}  // namespace tidemill::launcher
