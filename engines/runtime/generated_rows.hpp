// SPDX-License-Identifier: Apache-2.0
// What generation has computed of tokens that training will ask for again.
//
// A row has the same bits in a decode step and in a training window (R1 in engines/ops/ops.hpp), so
// a policy that trains on what it has just generated need not run its layers once more: their
// activations, keys and values are kept token by token as generation goes along. They are a pure
// function of the weights and of the tokens up to theirs, and these two are their key, as in the
// prefix tree: whoever computed a row, whoever finds it gets the right one, and after the next
// update nothing is found.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/aligned_bytes.hpp"
#include "base/digest.hpp"
#include "engines/runtime/factory.hpp"
#include "engines/transformer/transformer.hpp"

namespace tidemill::engines {

/// Names positions of a sequence by the weights that compute it and the tokens up to them.
class TokenChain {
public:
  /// The name of nothing.
  TokenChain() = default;
  /// No token yet. `weights` by content.
  explicit TokenChain(std::string_view weights);

  /// Appends a token; returns the name of its position.
  DigestKey append(std::int32_t token);
  [[nodiscard]] std::int64_t length() const noexcept { return length_; }

private:
  DigestKey key_;
  std::int64_t length_ = 0;
};

/// Returns whether generation keeps rows for training: not where those would be computed again.
[[nodiscard]] inline bool keeps_generated_rows(const RuntimeOptions& options) noexcept {
  return options.optimizer.has_value() && options.generated_bytes > 0 &&
         options.recompute == Recompute::kNone;
}

/// How rows are kept.
struct GeneratedRowsOptions {
  std::int64_t row_bytes = 0;       // of activations: `Activations::bytes_per_row`
  std::int64_t workspace_rows = 0;  // the most that one pass may keep
  std::int64_t byte_limit = 0;      // of all that is kept
};

/// Rows of one set of weights at a time. Threads: those of the views.
class GeneratedRows {
public:
  /// `activations` are where passes of both kinds keep rows, and must outlive it. Requires that
  /// nothing of them is computed again.
  GeneratedRows(const ModelConfig& config, Activations& activations,
                const GeneratedRowsOptions& options);

  /// Returns whether a pass over `rows` rows can keep `kept` of them.
  [[nodiscard]] bool has_room(std::int64_t rows, std::int64_t kept) const noexcept;
  /// Makes room for the rows of a pass, by name; returns what that pass does to fill it. Rows that
  /// have no name, or are there already, are not kept. Requires `has_room`. Call `end_pass` behind
  /// the pass.
  [[nodiscard]] ForwardOptions begin_pass(std::span<const std::optional<DigestKey>> rows);
  void end_pass();

  /// Looks up the rows of a batch. Returns false unless all are there.
  [[nodiscard]] bool find(std::span<const DigestKey> rows);
  /// Fills the activations with the last `num_training_rows` rows found, and returns the source of
  /// keys and values of all of them, good until the next call.
  [[nodiscard]] KeySource load(std::int64_t num_training_rows);

  /// Forgets all rows; their memory stays for others.
  void clear();

  /// Returns the memory taken.
  [[nodiscard]] std::int64_t size_bytes() const noexcept;
  /// Returns the memory that `rows` rows take, `row_bytes` of activations each, from `first_layer`
  /// on.
  [[nodiscard]] static std::int64_t bytes_for(std::int64_t rows, const ModelConfig& config,
                                              std::int64_t first_layer, std::int64_t row_bytes);

private:
  struct Hash {
    std::size_t operator()(const DigestKey& key) const noexcept { return key.low; }
  };

  [[nodiscard]] std::byte* new_record();

  // How records lie: keys and values of all layers, then activations; records in chunks.
  struct Layout {
    Layout(const ModelConfig& config, std::int64_t first_layer, std::int64_t row_bytes);

    std::int64_t key_cols;  // floats of one layer's keys
    std::int64_t keys_bytes;
    std::int64_t record_bytes;
    std::int64_t records_per_chunk;
    std::int64_t chunk_bytes;
  };

  Activations& activations_;
  std::int64_t first_layer_;  // the lowest that is kept
  Layout layout_;
  std::int64_t max_records_;
  std::int64_t workspace_rows_;
  std::int64_t num_used_ = 0;
  std::vector<AlignedBytes> chunks_;
  std::unordered_map<DigestKey, std::byte*, Hash> records_;
  std::vector<std::byte*> pass_;  // where the rows of a pass go, or were found; null: nowhere
};

}  // namespace tidemill::engines
