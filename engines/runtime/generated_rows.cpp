// SPDX-License-Identifier: Apache-2.0
#include "engines/runtime/generated_rows.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "base/check.hpp"

namespace tidemill::engines {
namespace {

// Records are aligned to cache lines.
constexpr std::int64_t kLine = 64;

}  // namespace

TokenChain::TokenChain(std::string_view weights)
    : key_(digest_key(std::as_bytes(std::span(weights)))) {}

DigestKey TokenChain::append(std::int32_t token) {
  const std::array<std::uint64_t, 3> link{key_.low, key_.high, static_cast<std::uint32_t>(token)};
  key_ = digest_key(std::as_bytes(std::span(link)));
  ++length_;
  return key_;
}

GeneratedRows::Layout::Layout(const ModelConfig& config, std::int64_t first_layer,
                              std::int64_t row_bytes)
    : key_cols(config.num_kv_heads * config.head_dim),
      keys_bytes((config.num_layers - first_layer) * 2 * key_cols *
                 static_cast<std::int64_t>(sizeof(float))),
      record_bytes((keys_bytes + row_bytes + kLine - 1) / kLine * kLine) {}

GeneratedRows::GeneratedRows(const ModelConfig& config, Activations& activations,
                             const GeneratedRowsOptions& options, Ops& ops)
    : ops_(ops),
      activations_(activations),
      first_layer_(activations.first_layer()),
      layout_(config, first_layer_, options.row_bytes),
      max_records_(std::min<std::int64_t>(options.byte_limit / layout_.record_bytes,
                                          std::numeric_limits<std::int32_t>::max())),
      workspace_rows_(options.workspace_rows) {
  memory_ = ops.memory().allocate(max_records_ * layout_.record_bytes, BlockUse::kSparse).value();
  pool_ = {memory_.address(), max_records_, layout_.record_bytes};
}

std::int64_t GeneratedRows::bytes_for(std::int64_t rows, const ModelConfig& config,
                                      std::int64_t first_layer, std::int64_t row_bytes) {
  return rows * Layout(config, first_layer, row_bytes).record_bytes;
}

bool GeneratedRows::has_room(std::int64_t rows, std::int64_t kept) const noexcept {
  return rows <= workspace_rows_ && num_used_ + kept <= max_records_;
}

std::int32_t GeneratedRows::new_record() {
  TIDEMILL_CHECK(num_used_ < max_records_) << num_used_;
  const auto record = static_cast<std::int32_t>(num_used_++);
  most_used_ = std::max(most_used_, num_used_);
  return record;
}

// Uploads the records of the rows of a pass.
void GeneratedRows::prepare(std::span<const std::int32_t> records) {
  PassContents contents;
  const PassRange range = contents.add_indices(records);
  pass_ = ops_.prepare_pass(std::move(contents), std::move(pass_)).value();
  rows_ = pass_->indices(range);
}

// Return the keys, and the values, of a layer in all records.
Matrix GeneratedRows::keys_of(std::int64_t layer) const {
  const std::int64_t first = (layer - first_layer_) * 2 * layout_.key_cols;
  return pool_.part(first * std::int64_t{sizeof(float)}, layout_.key_cols, DType::kF32);
}

Matrix GeneratedRows::values_of(std::int64_t layer) const {
  const std::int64_t first = (layer - first_layer_) * 2 * layout_.key_cols + layout_.key_cols;
  return pool_.part(first * std::int64_t{sizeof(float)}, layout_.key_cols, DType::kF32);
}

ForwardOptions GeneratedRows::begin_pass(std::span<const std::optional<DigestKey>> rows) {
  std::vector<std::int32_t> records(rows.size(), -1);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].has_value()) {
      const auto [record, is_new] = records_.try_emplace(*rows[i], -1);
      if (is_new) {
        record->second = records[i] = new_record();
      }
    }
  }
  prepare(records);
  ForwardOptions options;
  options.activations = &activations_;
  options.keeps_inference = true;
  options.key_observer = [this](std::int64_t layer, ConstMatrix key, ConstMatrix value) {
    if (layer >= first_layer_) {
      ops_.copy_rows(key, {}, keys_of(layer), rows_);
      ops_.copy_rows(value, {}, values_of(layer), rows_);
    }
  };
  return options;
}

void GeneratedRows::end_pass() {
  TIDEMILL_CHECK(layout_.keys_bytes + activations_.row_bytes() <= layout_.record_bytes)
      << activations_.row_bytes();
  activations_.save_rows(pool_, layout_.keys_bytes, rows_, ops_);
}

bool GeneratedRows::find(std::span<const DigestKey> rows) {
  found_.clear();
  for (const DigestKey& row : rows) {
    const auto record = records_.find(row);
    if (record == records_.end()) {
      return false;
    }
    found_.push_back(record->second);
  }
  return true;
}

KeySource GeneratedRows::load(std::int64_t num_training_rows) {
  prepare(found_);
  activations_.load_rows(pool_, layout_.keys_bytes,
                         rows_.slice(rows_.size - num_training_rows, num_training_rows), ops_);
  return [this](std::int64_t layer, Matrix key, Matrix value) {
    ops_.copy_rows(keys_of(layer), rows_, key, {});
    ops_.copy_rows(values_of(layer), rows_, value, {});
  };
}

void GeneratedRows::clear() {
  records_.clear();
  found_.clear();
  num_used_ = 0;
}

}  // namespace tidemill::engines
