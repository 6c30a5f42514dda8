// SPDX-License-Identifier: Apache-2.0
// Keeps rows that generation computed, so that training need not compute them again.
//
// A row has the same bits in a decode step and in a training window (R1 in engines/ops/ops.hpp). A
// policy that trains on tokens it has just generated therefore need not run its layers again:
// generation keeps their activations, keys and values token by token. A row is a pure function of
// the weights and of the tokens up to its own. These two are its key, as in the prefix tree. A row
// that is found is therefore the right one, whichever sequence computed it, and no row is found
// after the next update of the weights.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/digest.hpp"
#include "engines/runtime/runtime_options.hpp"
#include "engines/transformer/transformer.hpp"

namespace tidemill::engines {

/// Computes the keys of consecutive positions of a sequence, from the weights and the tokens up to
/// each position.
class TokenChain {
public:
  /// A chain without weights, to be assigned to.
  TokenChain() = default;
  /// A chain without tokens, under the weights whose content `weights` names.
  explicit TokenChain(std::string_view weights);

  /// Appends a token and returns the key of its position.
  DigestKey append(std::int32_t token);
  [[nodiscard]] std::int64_t length() const noexcept { return length_; }

private:
  DigestKey key_;
  std::int64_t length_ = 0;
};

/// Returns whether generation keeps rows for training. It does not if the backward pass computes
/// activations again.
[[nodiscard]] inline bool keeps_generated_rows(const RuntimeOptions& options) noexcept {
  return options.optimizer.has_value() && options.generated_bytes > 0 &&
         options.recompute == Recompute::kNone;
}

/// How rows are kept.
struct GeneratedRowsOptions {
  std::int64_t row_bytes = 0;   // of activations; see `Activations::bytes_per_row`
  std::int64_t byte_limit = 0;  // of all kept rows
};

/// The kept rows, of one set of weights at a time.
///
/// Threads: one call at a time over the runtime, its rollout view and its jobs.
class GeneratedRows {
public:
  /// Forward passes of generation leave their activations in memory of this object, which keeps
  /// those of `keep` from layer `first_layer` on, before they are copied to records. `ops` must
  /// outlive it. Requires `Recompute::kNone`.
  GeneratedRows(const ModelConfig& config, std::int64_t first_layer, const KeepOptions& keep,
                const GeneratedRowsOptions& options, Ops& ops);
  /// Reserves the memory of all records, and of passes over up to `pass_rows` rows with the adapter
  /// of `spec`. To be called once, before any other function.
  /// Errors: those of `DeviceMemory::allocate`.
  [[nodiscard]] Status reserve(std::int64_t pass_rows, const AdapterSpec& spec = {});

  /// Returns whether a pass can keep `count` rows.
  [[nodiscard]] bool has_room(std::int64_t count) const noexcept;
  /// Allocates records for the rows of a pass, given their keys. Returns the options with which the
  /// pass must run to fill them. Rows without a key, and rows that are already kept, are skipped.
  /// Requires `has_room`. Call `end_pass` after the pass.
  [[nodiscard]] ForwardOptions begin_pass(std::span<const std::optional<DigestKey>> rows);
  /// Copies the activations of the pass into the records.
  void end_pass();

  /// Looks up the rows of a batch. Returns true if all of them are kept.
  [[nodiscard]] bool find(std::span<const DigestKey> rows);
  /// Loads the activations of the last `num_training_rows` rows that `find` found. Returns the
  /// source of keys and values of all rows found. Until the source is destroyed, its records keep
  /// their content, even if `clear` is called. Requires that the last call was a successful `find`.
  [[nodiscard]] KeySource load(std::int64_t num_training_rows, Activations& activations);

  /// Drops all rows. Their memory is kept for later rows, which find room once no source reads the
  /// dropped ones.
  void clear();

  /// Returns the memory that records have taken until now. Units: bytes.
  [[nodiscard]] std::int64_t size_bytes() const noexcept {
    return most_used_ * layout_.record_bytes;
  }
  /// Returns the memory that `rows` rows take with `row_bytes` of activations each, if layers from
  /// `first_layer` on are kept.
  [[nodiscard]] static std::int64_t bytes_for(std::int64_t rows, const ModelConfig& config,
                                              std::int64_t first_layer, std::int64_t row_bytes);

private:
  struct Hash {
    std::size_t operator()(const DigestKey& key) const noexcept { return key.low; }
  };

  // The layout of a record: the keys and values of all kept layers, then the activations.
  struct Layout {
    Layout(const ModelConfig& config, std::int64_t first_layer, std::int64_t row_bytes);

    std::int64_t key_cols;  // floats in the keys of one layer
    std::int64_t keys_bytes;
    std::int64_t record_bytes;
  };

  // The records that a source reads. While one exists, no record is given to another row.
  struct Reading {
    std::unique_ptr<PreparedPass> pass;
    IndexList rows;
  };

  [[nodiscard]] std::int32_t new_record();
  [[nodiscard]] IndexList prepare(std::span<const std::int32_t> records,
                                  std::unique_ptr<PreparedPass>& pass);
  [[nodiscard]] Matrix keys_of(std::int64_t layer) const;
  [[nodiscard]] Matrix values_of(std::int64_t layer) const;

  Ops& ops_;
  Activations scratch_;       // of one pass of generation
  std::int64_t first_layer_;  // the lowest kept layer
  Layout layout_;
  std::int64_t max_records_;
  std::int64_t num_used_ = 0;
  std::int64_t most_used_ = 0;  // the largest value of `num_used_`
  DeviceBlock memory_;
  RecordPool pool_;
  std::unordered_map<DigestKey, std::int32_t, Hash> records_;
  std::vector<std::int32_t> found_;  // the records of the last lookup
  bool dropped_ = false;             // no record is in use but those that a source reads
  std::weak_ptr<const Reading> reading_;
  std::unique_ptr<PreparedPass> pass_;  // the records of the rows of a pass; -1: not kept
  IndexList rows_;                      // in `pass_`
  std::int64_t saved_bytes_ = 0;        // of each record of the pass, until now
};

}  // namespace tidemill::engines
