// SPDX-License-Identifier: Apache-2.0
// From hidden states to tokens: the logits of the rows that need them, scores of prompts, draws.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engines/runtime/device.hpp"
#include "engines/runtime/rollout_queue.hpp"
#include "engines/runtime/weight_shelf.hpp"
#include "engines/sampling/sampler.hpp"
#include "engines/transformer/owned_matrix.hpp"

namespace tidemill::engines {

/// A token drawn for a sequence, or why there is none.
struct Draw {
  RolloutSequence* sequence = nullptr;
  std::int32_t token = -1;  // -1: nothing was to be drawn
  float logprob = 0.0F;
  std::string error;  // empty: none
};

/// Works through the rows of one batch. Log-probabilities come from the operation that training
/// uses, on the raw logits.
///
/// Threads: one call at a time.
class TokenDrawer {
public:
  explicit TokenDrawer(Device& device) : device_(device) {}

  /// Writes the prompt scores that `chunks` computed into their sequences, and returns one draw for
  /// each sequence that has its next token, needs none, or whose logits are not finite. A chunk
  /// without tokens is drawn for from its sequence's `row`.
  /// Shapes: `hidden` (T, D), the rows of `chunks` one after the other, before `num_cached` moves.
  [[nodiscard]] std::vector<Draw> run(const LaidOutWeights& weights, ConstMatrix hidden,
                                      std::span<const RolloutChunk> chunks);

private:
  struct Row {
    const float* hidden = nullptr;
    std::int64_t position = 0;  // in the sequence
    Draw* draw = nullptr;       // never null
    const Adapter* adapter = nullptr;
    bool last = false;  // the sequence's last token
  };

  [[nodiscard]] static std::vector<AdapterRun> adapter_runs(std::span<const Row> rows);
  void score_prompts(std::span<const Row> rows, ConstMatrix logits);
  void draw_tokens(std::span<const Row> rows, ConstMatrix logits);
  void draw_token(const Row& row, std::span<const float> logits);

  Device& device_;
  Sampler sampler_;
  OwnedMatrix hidden_;
  OwnedMatrix logits_;
};

}  // namespace tidemill::engines
