// SPDX-License-Identifier: Apache-2.0
#include "engines/transformer/prefix_gradients.hpp"

#include <iterator>

#include "base/check.hpp"

namespace tidemill::engines {

// The memory of a layer may never be touched, if no prefix is carried.
Status CarriedPrefix::reserve(const ModelConfig& config, std::int64_t rows, DeviceMemory& memory) {
  const std::int64_t cols = config.num_kv_heads * config.head_dim;
  for (std::vector<DeviceMatrix>* layers : {&dkey, &dvalue}) {
    layers->clear();
    for (std::int64_t index = 0; index < config.num_layers; ++index) {
      TIDEMILL_RETURN_IF_ERROR(layers->emplace_back(memory).reserve(rows, cols, BlockUse::kSparse));
    }
  }
  return {};
}

PrefixGradients::PrefixGradients(const BatchPlan& plan, DeviceMatrix& dkey, DeviceMatrix& dvalue,
                                 CarriedPrefix* carried, Ops& ops)
    : ops_(ops), plan_(plan), dkey_(dkey), dvalue_(dvalue), carried_(carried) {
  const auto& prefixes = plan.prefixes;
  for (std::size_t i = 0; i + 1 < prefixes.size(); ++i) {
    TIDEMILL_CHECK(prefixes[i].trained) << "only the last prefix may be trained in a later batch";
  }
  TIDEMILL_CHECK(carried != nullptr || !carries_on())
      << "a prefix is trained in a later batch, but `carried` is null";
  TIDEMILL_CHECK(carried == nullptr || carried->empty() ||
                 (!prefixes.empty() && prefixes.front().num_tokens == carried->num_tokens))
      << "the first prefix of the batch is not the one that is carried";
}

bool PrefixGradients::carries_on() const noexcept {
  return !plan_.prefixes.empty() && !plan_.prefixes.back().trained;
}

KvGradient PrefixGradients::rows_of(std::int64_t prefix) const {
  const PlannedPrefix& planned = plan_.prefixes[static_cast<std::size_t>(prefix)];
  return {dkey_.view().slice_rows(planned.first_row, planned.num_tokens),
          dvalue_.view().slice_rows(planned.first_row, planned.num_tokens)};
}

void PrefixGradients::begin_layer(std::int64_t index, std::int64_t num_layers, std::int64_t cols) {
  if (plan_.prefixes.empty()) {
    return;
  }
  const std::int64_t rows = plan_.prefixes.back().first_row + plan_.prefixes.back().num_tokens;
  ops_.fill(0.0F, dkey_.reshape(rows, cols));
  ops_.fill(0.0F, dvalue_.reshape(rows, cols));
  if (carried_ == nullptr) {
    return;
  }
  const auto layer = static_cast<std::size_t>(index);
  while (std::ssize(carried_->dkey) < num_layers) {
    carried_->dkey.emplace_back(ops_.memory());
    carried_->dvalue.emplace_back(ops_.memory());
  }
  if (!carried_->empty()) {
    const KvGradient first = rows_of(0);
    ops_.copy(carried_->dkey[layer].view(), first.dk);
    ops_.copy(carried_->dvalue[layer].view(), first.dv);
  }
}

void PrefixGradients::add(std::int64_t prefix, const KvGradient& from) {
  const KvGradient to = rows_of(prefix);
  ops_.add_scaled(from.dk.slice_rows(0, to.dk.rows), 1.0F, to.dk);
  ops_.add_scaled(from.dv.slice_rows(0, to.dv.rows), 1.0F, to.dv);
}

void PrefixGradients::copy(std::int64_t prefix, const KvGradient& to) const {
  const KvGradient from = rows_of(prefix);
  ops_.copy(from.dk, to.dk.slice_rows(0, from.dk.rows));
  ops_.copy(from.dv, to.dv.slice_rows(0, from.dv.rows));
}

void PrefixGradients::end_layer(std::int64_t index) {
  if (!carries_on()) {
    return;
  }
  const auto layer = static_cast<std::size_t>(index);
  const KvGradient last = rows_of(std::ssize(plan_.prefixes) - 1);
  carried_->dkey[layer].keep(last.dk, ops_);
  carried_->dvalue[layer].keep(last.dv, ops_);
}

void PrefixGradients::finish() {
  if (carried_ != nullptr) {
    carried_->num_tokens = carries_on() ? plan_.prefixes.back().num_tokens : 0;
  }
}

}  // namespace tidemill::engines
