// SPDX-License-Identifier: Apache-2.0
// Runtimes on small models, and what tests do with them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engines/formats/model_files.hpp"
#include "engines/runtime/factory.hpp"
#include "engines/train_engine.hpp"
#include "engines/transformer/kv_cache.hpp"

namespace tidemill::engines {

/// Keeps the results of requests by id; a second result for one id fails the test program.
class ResultKeeper final : public RolloutSink {
public:
  void on_rollout(RolloutResult result) override;
  [[nodiscard]] const RolloutResult& at(std::uint64_t id) const;
  [[nodiscard]] bool has(std::uint64_t id) const { return results_.contains(id); }
  [[nodiscard]] std::size_t size() const { return results_.size(); }

private:
  std::map<std::uint64_t, RolloutResult> results_;
};

/// A sum of log-probabilities and entropies, weighted by the sequences' ids.
class WeightedLoss final : public TokenLoss {
public:
  Status evaluate(std::span<const LossRow> rows, LossSums& sums) override;
};

/// Returns "cpu" or "reference".
[[nodiscard]] std::string backend_name(Backend backend);

/// A random model with every feature that changes code, its table and head apart.
[[nodiscard]] ModelFiles small_model(std::uint64_t seed);
/// LoRA on all linear layers of `model`, both matrices nonzero.
[[nodiscard]] AdapterFiles small_adapter(const ModelConfig& model, std::uint64_t seed);
/// The adapter of that name among `adapter_samples`, away from where a fresh one starts.
[[nodiscard]] AdapterFiles sample_adapter(const ModelFiles& model, const std::string& name,
                                          std::uint64_t seed);

enum class Training : std::uint8_t { kNo, kYes };
/// Options with two threads, a cache of `cache_tokens` tokens and, if wanted, an optimizer; weights
/// and cache of `dtype`.
[[nodiscard]] RuntimeOptions small_options(const ModelConfig& model, Backend backend,
                                           std::int64_t cache_tokens, Training training,
                                           DType dtype = DType::kF32);

/// Steps until there is no more work; returns the number of steps.
int run_to_end(RolloutEngine& engine, std::int64_t budget_tokens = 64);

/// Submits `requests` together and returns what became of them, by id.
void run_requests(RolloutEngine& engine, const std::vector<RolloutRequest>& requests,
                  ResultKeeper& results, std::int64_t budget_tokens = 64);

/// Expects the same tokens, reasons and bits.
void expect_same_result(const RolloutResult& actual, const RolloutResult& expected);
/// Returns whether both hold the same names, types, shapes and bits.
[[nodiscard]] bool same_tensors(const TensorMap& a, const TensorMap& b);

/// A request that samples `max_new_tokens` tokens after a random prompt.
[[nodiscard]] RolloutRequest sampling_request(std::uint64_t id, const ModelConfig& model,
                                              std::int64_t prompt_tokens,
                                              std::int32_t max_new_tokens);

/// Returns prompt and response of a finished request, the response as targets.
[[nodiscard]] TrainSequence to_sequence(const RolloutRequest& request, const RolloutResult& result);

}  // namespace tidemill::engines
