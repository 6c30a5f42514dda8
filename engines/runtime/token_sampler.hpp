// SPDX-License-Identifier: Apache-2.0
// Turns hidden states into tokens: computes the logits of the rows that need them, scores prompts
// and samples tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engines/runtime/rollout_queue.hpp"
#include "engines/runtime/runtime_context.hpp"
#include "engines/runtime/weight_cache.hpp"
#include "engines/transformer/device_matrix.hpp"

namespace tidemill::engines {

/// A token sampled for a sequence, or the reason why there is none.
struct SampledToken {
  RolloutSequence* sequence = nullptr;
  std::int32_t token = -1;  // -1: no token was to be sampled
  float logprob = 0.0F;
  std::vector<TokenLogprob> top_logprobs;  // if the request wants them
  std::string error;                       // empty if there is none
};

/// Processes the rows of one batch. It computes log-probabilities from the raw logits with the same
/// operation as training.
///
/// Threads: one call at a time.
class TokenSampler {
public:
  explicit TokenSampler(RuntimeContext& context)
      : context_(context),
        hidden_(context.ops->memory()),
        logits_(context.ops->memory()),
        logprobs_(context.ops->memory()),
        max_rows_(RuntimeContext::logit_rows(context.config)) {}

  /// Reserves memory for `rows` rows, or fewer if logits are computed in smaller parts. More rows
  /// are then processed in several parts.
  /// Errors: those of `DeviceMemory::allocate`.
  [[nodiscard]] Status reserve(std::int64_t rows);

  /// Adds the prompt scores of `chunks` to the results of their sequences. Returns one entry for
  /// each sequence that got its next token, needs none because only its prompt is scored, or failed
  /// because its logits are not finite. For a chunk without tokens, the next token is sampled from
  /// `row` of the sequence. Must be called before `num_cached` of the sequences advances.
  /// Shapes: `hidden` (T, D), the rows of `chunks` in order.
  [[nodiscard]] std::vector<SampledToken> run(const LaidOutWeights& weights, ConstMatrix hidden,
                                              std::span<const RolloutChunk> chunks);

private:
  struct Row {
    std::int64_t hidden_row = -1;     // of the batch; -1: the hidden state is that of the sequence
    std::int64_t position = 0;        // in the sequence
    SampledToken* sampled = nullptr;  // never null
    const Adapter* adapter = nullptr;
    bool last = false;         // the last token of the sequence
    std::int32_t target = -1;  // the prompt token to score, or -1
  };

  [[nodiscard]] static std::vector<AdapterRun> adapter_runs(std::span<const Row> rows);
  [[nodiscard]] std::vector<Row> rows_of(const LaidOutWeights& weights,
                                         std::span<const RolloutChunk> chunks,
                                         std::span<SampledToken> sampled) const;
  void prepare(std::span<const Row> rows);
  void gather_hidden(ConstMatrix hidden, std::span<const Row> rows);
  void score_prompts(std::span<const Row> rows);
  void keep_logits(const Row& row, std::int64_t index);
  [[nodiscard]] TokenMask mask_of(const Row& row, std::vector<std::uint64_t>& words) const;
  [[nodiscard]] std::vector<TokenLogprob> read_top(std::int64_t index, float inv_temperature,
                                                   std::int32_t count, TokenLogprob known);
  void sample_tokens(std::span<const Row> rows);

  RuntimeContext& context_;
  DeviceMatrix hidden_;    // (R, D), of the rows that need logits
  DeviceMatrix logits_;    // (R, V)
  DeviceMatrix logprobs_;  // (R, 1), of the prompt tokens to score
  std::int64_t max_rows_;  // R at most
  std::unique_ptr<PreparedPass> pass_;
  IndexList hidden_rows_;                          // of the batch; -1: not of the batch
  IndexList targets_;                              // prompt tokens to score, or -1
  std::vector<float> row_;                         // scratch: one row of the logits
  std::vector<std::vector<std::uint64_t>> masks_;  // of the rows whose sequences have constraints
};

}  // namespace tidemill::engines
