// SPDX-License-Identifier: Apache-2.0
#include "engines/runtime/generated_rows.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>

#include "base/check.hpp"

namespace tidemill::engines {
namespace {

// The memory of a chunk of records.
constexpr std::int64_t kChunkBytes = std::int64_t{2} << 20U;
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
      record_bytes((keys_bytes + row_bytes + kLine - 1) / kLine * kLine),
      records_per_chunk(std::max<std::int64_t>(1, kChunkBytes / record_bytes)),
      chunk_bytes(std::max(kChunkBytes, record_bytes)) {}

GeneratedRows::GeneratedRows(const ModelConfig& config, Activations& activations,
                             const GeneratedRowsOptions& options)
    : activations_(activations),
      first_layer_(activations.first_layer()),
      layout_(config, first_layer_, options.row_bytes),
      max_records_(options.byte_limit / layout_.chunk_bytes * layout_.records_per_chunk),
      workspace_rows_(options.workspace_rows) {}

std::int64_t GeneratedRows::bytes_for(std::int64_t rows, const ModelConfig& config,
                                      std::int64_t first_layer, std::int64_t row_bytes) {
  const Layout layout(config, first_layer, row_bytes);
  return (rows + layout.records_per_chunk - 1) / layout.records_per_chunk * layout.chunk_bytes;
}

bool GeneratedRows::has_room(std::int64_t rows, std::int64_t kept) const noexcept {
  return rows <= workspace_rows_ && num_used_ + kept <= max_records_;
}

std::byte* GeneratedRows::new_record() {
  const std::int64_t chunk = num_used_ / layout_.records_per_chunk;
  if (chunk == std::ssize(chunks_)) {
    chunks_.emplace_back(layout_.chunk_bytes);
  }
  const std::int64_t index = num_used_++ % layout_.records_per_chunk;
  return chunks_[static_cast<std::size_t>(chunk)].data() + index * layout_.record_bytes;
}

ForwardOptions GeneratedRows::begin_pass(std::span<const std::optional<DigestKey>> rows) {
  pass_.assign(rows.size(), nullptr);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].has_value()) {
      const auto [record, is_new] = records_.try_emplace(*rows[i], nullptr);
      if (is_new) {
        record->second = pass_[i] = new_record();
      }
    }
  }
  TIDEMILL_CHECK(num_used_ <= max_records_) << num_used_;
  ForwardOptions options;
  options.activations = &activations_;
  options.keeps_inference = true;
  options.key_observer = [this](std::int64_t layer, ConstMatrix key, ConstMatrix value) {
    if (layer < first_layer_) {
      return;
    }
    const std::int64_t first = (layer - first_layer_) * 2 * layout_.key_cols;
    for (std::size_t i = 0; i < pass_.size(); ++i) {
      if (pass_[i] != nullptr) {
        float* to = reinterpret_cast<float*>(pass_[i]) + first;
        std::copy_n(key.row(static_cast<std::int64_t>(i)), layout_.key_cols, to);
        std::copy_n(value.row(static_cast<std::int64_t>(i)), layout_.key_cols,
                    to + layout_.key_cols);
      }
    }
  };
  return options;
}

void GeneratedRows::end_pass() {
  TIDEMILL_CHECK(layout_.keys_bytes + activations_.row_bytes() <= layout_.record_bytes)
      << activations_.row_bytes();
  for (std::byte*& record : pass_) {
    record = record != nullptr ? record + layout_.keys_bytes : nullptr;
  }
  activations_.save_rows(pass_);
  pass_.clear();
}

bool GeneratedRows::find(std::span<const DigestKey> rows) {
  pass_.clear();
  for (const DigestKey& row : rows) {
    const auto record = records_.find(row);
    if (record == records_.end()) {
      return false;
    }
    pass_.push_back(record->second);
  }
  return true;
}

KeySource GeneratedRows::load(std::int64_t num_training_rows) {
  std::vector<const std::byte*> rows;
  for (auto record = pass_.end() - num_training_rows; record != pass_.end(); ++record) {
    rows.push_back(*record + layout_.keys_bytes);
  }
  activations_.load_rows(rows);
  return [this](std::int64_t layer, Matrix key, Matrix value) {
    const std::int64_t first = (layer - first_layer_) * 2 * layout_.key_cols;
    for (std::size_t i = 0; i < pass_.size(); ++i) {
      const float* from = reinterpret_cast<const float*>(pass_[i]) + first;
      std::copy_n(from, layout_.key_cols, key.row(static_cast<std::int64_t>(i)));
      std::copy_n(from + layout_.key_cols, layout_.key_cols,
                  value.row(static_cast<std::int64_t>(i)));
    }
  };
}

void GeneratedRows::clear() {
  records_.clear();
  pass_.clear();
  num_used_ = 0;
}

std::int64_t GeneratedRows::size_bytes() const noexcept {
  std::int64_t bytes = 0;
  for (const AlignedBytes& chunk : chunks_) {
    bytes += chunk.size();
  }
  return bytes;
}

}  // namespace tidemill::engines
