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

GeneratedRows::GeneratedRows(const ModelConfig& config, std::int64_t first_layer,
                             const KeepOptions& keep, const GeneratedRowsOptions& options, Ops& ops)
    : ops_(ops),
      scratch_(config, first_layer, ops.memory(), {keep.recompute, keep.dtype, true}),
      first_layer_(first_layer),
      layout_(config, first_layer, options.row_bytes),
      max_records_(std::min<std::int64_t>(options.byte_limit / layout_.record_bytes,
                                          std::numeric_limits<std::int32_t>::max())) {}

Status GeneratedRows::reserve(std::int64_t pass_rows, const AdapterSpec& spec) {
  TIDEMILL_RETURN_IF_ERROR(scratch_.reserve(pass_rows, spec));
  TIDEMILL_ASSIGN_OR_RETURN(
      memory_, ops_.memory().allocate(max_records_ * layout_.record_bytes, BlockUse::kSparse));
  pool_ = {memory_.address(), max_records_, layout_.record_bytes};
  return {};
}

std::int64_t GeneratedRows::bytes_for(std::int64_t rows, const ModelConfig& config,
                                      std::int64_t first_layer, std::int64_t row_bytes) {
  return rows * Layout(config, first_layer, row_bytes).record_bytes;
}

bool GeneratedRows::has_room(std::int64_t count) const noexcept {
  const bool reusable = !dropped_ || reading_.expired();
  const std::int64_t used = dropped_ ? 0 : num_used_;
  return reusable && used + count <= max_records_;
}

std::int32_t GeneratedRows::new_record() {
  TIDEMILL_CHECK(num_used_ < max_records_) << num_used_;
  const auto record = static_cast<std::int32_t>(num_used_++);
  most_used_ = std::max(most_used_, num_used_);
  return record;
}

// Uploads the records of the rows of a pass.
IndexList GeneratedRows::prepare(std::span<const std::int32_t> records,
                                 std::unique_ptr<PreparedPass>& pass) {
  PassContents contents;
  const PassRange range = contents.add_indices(records);
  pass = ops_.prepare_pass(std::move(contents), std::move(pass)).value();
  return pass->indices(range);
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
  if (std::exchange(dropped_, false)) {
    TIDEMILL_CHECK(reading_.expired()) << "`has_room` was false";
    num_used_ = 0;
  }
  std::vector<std::int32_t> records(rows.size(), -1);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].has_value()) {
      const auto [record, is_new] = records_.try_emplace(*rows[i], -1);
      if (is_new) {
        record->second = records[i] = new_record();
      }
    }
  }
  rows_ = prepare(records, pass_);
  saved_bytes_ = layout_.keys_bytes;
  ForwardOptions options;
  options.activations = &scratch_;
  options.keeps_inference = true;
  options.key_observer = [this](std::int64_t layer, ConstMatrix key, ConstMatrix value) {
    if (layer >= first_layer_) {
      ops_.copy_rows(key, {}, keys_of(layer), rows_);
      ops_.copy_rows(value, {}, values_of(layer), rows_);
    }
  };
  options.observer = [this](std::int64_t num_layers, ConstMatrix /*hidden*/) {
    if (num_layers > first_layer_) {
      saved_bytes_ += scratch_.save_layer(num_layers - 1, pool_, saved_bytes_, rows_, ops_);
    }
  };
  return options;
}

void GeneratedRows::end_pass() {
  saved_bytes_ += scratch_.save_final(pool_, saved_bytes_, rows_, ops_);
  TIDEMILL_CHECK(saved_bytes_ <= layout_.record_bytes) << saved_bytes_;
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

KeySource GeneratedRows::load(std::int64_t num_training_rows, Activations& activations) {
  auto reading = std::make_shared<Reading>();
  reading->rows = prepare(found_, reading->pass);
  reading_ = reading;
  const IndexList rows = reading->rows;
  activations.load_rows(pool_, layout_.keys_bytes,
                        rows.slice(rows.size - num_training_rows, num_training_rows), ops_);
  return [this, reading = std::move(reading)](std::int64_t layer, std::int64_t first_row,
                                              Matrix key, Matrix value) {
    const IndexList records = reading->rows.slice(first_row, key.rows);
    ops_.copy_rows(keys_of(layer), records, key, {});
    ops_.copy_rows(values_of(layer), records, value, {});
  };
}

void GeneratedRows::clear() {
  records_.clear();
  found_.clear();
  dropped_ = true;
}

}  // namespace tidemill::engines
