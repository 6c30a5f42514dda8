// SPDX-License-Identifier: Apache-2.0
// Runtimes on small models, and helpers for tests that use them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engines/formats/model_files.hpp"
#include "engines/runtime/model_runtime.hpp"
#include "engines/training_job.hpp"
#include "engines/transformer/kv_cache.hpp"
#include "tests/support/streamed_tokens.hpp"

namespace tidemill::engines {

/// Keeps the results of requests by id. A second result for an id aborts the test program. Expects
/// the tokens streamed for a request to be those of its result.
class ResultKeeper final : public RolloutSink {
public:
  void on_tokens(const RolloutTokens& tokens) override { streamed_.take(tokens); }
  void on_rollout(RolloutResult result) override;
  [[nodiscard]] const test::StreamedTokens& streamed() const { return streamed_; }
  [[nodiscard]] const RolloutResult& at(std::uint64_t id) const;
  [[nodiscard]] bool has(std::uint64_t id) const { return results_.contains(id); }
  [[nodiscard]] std::size_t size() const { return results_.size(); }

private:
  std::map<std::uint64_t, RolloutResult> results_;
  test::StreamedTokens streamed_;
};

/// A weighted sum of log-probabilities, with weights that depend on the ids of the sequences, whose
/// gradient also has a constant for entropies.
class WeightedLoss final : public TokenLoss {
public:
  Status evaluate(std::span<const LossSequence> rows, LossSums& sums) override;
};

/// The kernels and the type with which a test computes.
struct Arithmetic {
  Backend backend;
  DType dtype;  // of weights and cache
};

/// Returns "cpu" or "reference".
[[nodiscard]] std::string backend_name(Backend backend);

/// Returns a random model with every feature that the code distinguishes and an untied head.
[[nodiscard]] ModelFiles small_model(std::uint64_t seed);
/// Returns LoRA on all linear layers of `model`, with both matrices nonzero.
[[nodiscard]] AdapterFiles small_adapter(const ModelConfig& model, std::uint64_t seed);
/// Returns the adapter `name` of `adapter_samples` with random tensors, unlike a new one.
[[nodiscard]] AdapterFiles sample_adapter(const ModelFiles& model, const std::string& name,
                                          std::uint64_t seed);

enum class Training : std::uint8_t { kNo, kYes };
/// Returns options with a cache of `cache_tokens` tokens, weights and cache of type `dtype`, and an
/// optimizer if `training` is kYes. The CPU backend gets two threads.
[[nodiscard]] RuntimeOptions small_options(const ModelConfig& model, Backend backend,
                                           std::int64_t cache_tokens, Training training,
                                           DType dtype = DType::kF32);

/// Steps until there is no more work; returns the number of steps.
int run_to_end(RolloutEngine& engine, std::int64_t budget_tokens = 64);

/// Submits all `requests`, runs the engine until it has no more work, and stores the results.
void run_requests(RolloutEngine& engine, const std::vector<RolloutRequest>& requests,
                  ResultKeeper& results, std::int64_t budget_tokens = 64);

/// Expects equal tokens, versions, finish reasons and errors, and floats with equal bits.
void expect_same_result(const RolloutResult& actual, const RolloutResult& expected);
/// Returns whether both hold the same names, types, shapes and bits.
[[nodiscard]] bool same_tensors(const TensorMap& a, const TensorMap& b);

/// Returns a request that samples `max_new_tokens` tokens after a random prompt.
[[nodiscard]] RolloutRequest sampling_request(std::uint64_t id, const ModelConfig& model,
                                              std::int64_t prompt_tokens,
                                              std::int32_t max_new_tokens);

/// Returns the prompt and the response of a finished request, with the response as targets.
[[nodiscard]] TrainSequence to_sequence(const RolloutRequest& request, const RolloutResult& result);

}  // namespace tidemill::engines
