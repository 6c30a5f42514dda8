// SPDX-License-Identifier: Apache-2.0
// A model on one backend with a cache, and the passes over whole sequences that tests run.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/tensor/tensor.hpp"
#include "engines/transformer/transformer.hpp"
#include "tests/engines/transformer/backends.hpp"

namespace tidemill::engines {

/// A matrix by value.
struct Rows {
  std::int64_t cols = 0;
  std::vector<float> values;
  [[nodiscard]] std::int64_t size() const {
    return static_cast<std::int64_t>(values.size()) / cols;
  }
  [[nodiscard]] const float* row(std::int64_t index) const { return values.data() + index * cols; }
  /// Appends rows in device memory.
  void append(ConstMatrix rows, Ops& ops);
  friend bool operator==(const Rows&, const Rows&) = default;
};

/// One sequence to train on. Index t of a column belongs to token t; index 0 is unused.
struct TestSequence {
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> mask;  // 1: a target
  std::vector<float> dlogprobs;
  std::vector<float> dentropies;
};

struct TokenScores {
  std::vector<float> logprobs;  // of each sequence's tokens, one sequence after the other
  std::vector<float> entropies;
};

/// Returns sum dlogprobs * logprob + dentropies * entropy, the loss whose gradients `train` adds.
[[nodiscard]] double objective(const std::vector<TestSequence>& sequences,
                               const TokenScores& scores);

/// Types of weights and cache, and the use of the weights.
struct HarnessOptions {
  WeightOptions weights{DType::kF32, WeightUse::kForwardAndBackward, /*keep_tensors=*/true};
  DType kv = DType::kF32;
  std::int64_t cache_tokens = 4096;
};

/// A model that is ready to run. Members are public, so that tests can access all of its parts.
class ModelHarness {
public:
  ModelHarness(const Backend& backend, const ModelConfig& config, const TensorMap& tensors,
               const HarnessOptions& options = {});

  /// Replaces the weights.
  void load(const TensorMap& tensors);
  [[nodiscard]] std::shared_ptr<const Adapter> adapter(const AdapterSpec& spec,
                                                       const TensorMap& tensors) const;
  /// Allocates pages for a sequence.
  [[nodiscard]] std::vector<std::int32_t> pages_for(std::int64_t tokens) const;

  /// Returns the hidden states of one sequence, run alone in one chunk.
  [[nodiscard]] Rows hidden(const std::vector<std::int32_t>& ids, const Adapter* adapter = nullptr);
  [[nodiscard]] Rows logits(ConstMatrix hidden, const Adapter* adapter = nullptr);
  [[nodiscard]] Rows logits(const Rows& hidden, const Adapter* adapter = nullptr);
  [[nodiscard]] Rows logits_of(const std::vector<std::int32_t>& ids,
                               const Adapter* adapter = nullptr);

  /// Returns the results of `Transformer::start_token_logprobs`.
  [[nodiscard]] TokenScores token_logprobs(const Rows& hidden,
                                           const std::vector<std::int32_t>& targets,
                                           const HeadOptions& head = {});
  /// Returns the log-probability of `target` after one row of logits.
  [[nodiscard]] float logprob(const Rows& logits, std::int32_t target, float inv_temperature);

  /// Scores the targets of `sequences` in one training batch. If `gradients` is not null, adds the
  /// gradients of sum dlogprobs * logprob + dentropies * entropy.
  TokenScores train(const std::vector<TestSequence>& sequences, const Adapter* adapter,
                    const HeadOptions& head, Gradients* gradients);

  HarnessOptions options;
  ModelConfig config;
  std::shared_ptr<Ops> ops;
  Transformer model;
  std::shared_ptr<const ModelWeights> weights;
  std::unique_ptr<KvCache> cache;
  KeepOptions keep;          // for `train`
  BackwardOptions backward;  // for `train`
  /// Whether `train` has the head compute logits once, with `Transformer::start_token_loss`.
  bool fused_loss = false;
  /// Sequences that `train` adds before its own as inference segments.
  std::vector<std::vector<std::int32_t>> inference_sequences;
};

/// Returns random sequences of `lengths`. Some of their tokens are targets.
[[nodiscard]] std::vector<TestSequence> random_sequences(const ModelConfig& config,
                                                         const std::vector<std::int64_t>& lengths,
                                                         std::uint64_t seed);
/// Returns zero gradients of `adapter` or, if it is null, of all parameters.
[[nodiscard]] Gradients gradients_for(const ModelConfig& config, const Adapter* adapter, Ops& ops);
/// Returns the gradients of `sequences`, which `harness` trains in micro-batches that end before
/// the indices in `cuts`.
[[nodiscard]] std::vector<float> gradient_values(ModelHarness& harness,
                                                 const std::vector<TestSequence>& sequences,
                                                 const std::vector<std::size_t>& cuts,
                                                 const Adapter* adapter, std::int64_t chunk_rows,
                                                 std::int64_t unit_features = 0);

}  // namespace tidemill::engines
