// SPDX-License-Identifier: Apache-2.0
// Operations whose sums over rows can only be cut at multiples of a step, as those of a device with
// tiles are: a test of all code that cuts sums.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engines/ops/backend.hpp"
#include "engines/ops/host/host_backend.hpp"
#include "engines/ops/host/host_ops.hpp"
#include "engines/ops/reference/factory.hpp"

namespace tidemill::engines {

/// The operations of `ops`, except that sums over rows first add up every `step` rows of a call,
/// then the results. `traits` says which step they declare.
class SteppedOps final : public host::Ops {
public:
  SteppedOps(std::unique_ptr<host::Ops> ops, std::int64_t step, BackendTraits traits)
      : ops_(std::move(ops)), step_(step), traits_(traits) {}

  std::string_view description() const noexcept override { return "stepped"; }
  BackendTraits traits() const noexcept override { return traits_; }

  void linear_backward_weight(host::ConstMatrix dy, host::ConstMatrix x, host::Matrix dw) override {
    in_steps(dy.rows, [&](std::int64_t first, std::int64_t count) {
      add(dw, [&](host::Matrix sum) {
        ops_->linear_backward_weight(dy.slice_rows(first, count), x.slice_rows(first, count), sum);
      });
    });
  }
  void bias_backward(host::ConstMatrix dy, std::span<float> dbias) override {
    in_steps(dy.rows, [&](std::int64_t first, std::int64_t count) {
      add(dbias,
          [&](std::span<float> sum) { ops_->bias_backward(dy.slice_rows(first, count), sum); });
    });
  }
  void embed_backward(std::span<const std::int32_t> ids, host::ConstMatrix dout,
                      host::Matrix dtable) override {
    in_steps(dout.rows, [&](std::int64_t first, std::int64_t count) {
      add(dtable, [&](host::Matrix sum) {
        ops_->embed_backward(
            ids.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)),
            dout.slice_rows(first, count), sum);
      });
    });
  }
  void rms_norm_backward(host::ConstMatrix dout, host::ConstMatrix x, std::span<const float> gain,
                         std::span<const float> rstd, Store store, host::Matrix dx,
                         std::span<float> dgain) override {
    in_steps(dout.rows, [&](std::int64_t first, std::int64_t count) {
      const auto backward = [&](std::span<float> sum) {
        ops_->rms_norm_backward(
            dout.slice_rows(first, count), x.slice_rows(first, count), gain,
            rstd.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)), store,
            dx.slice_rows(first, count), sum);
      };
      if (dgain.empty()) {
        backward(dgain);
      } else {
        add(dgain, backward);
      }
    });
  }
  void scale_columns_backward(host::ConstMatrix dout, host::ConstMatrix x,
                              std::span<float> dfactors) override {
    in_steps(dout.rows, [&](std::int64_t first, std::int64_t count) {
      add(dfactors, [&](std::span<float> sum) {
        ops_->scale_columns_backward(dout.slice_rows(first, count), x.slice_rows(first, count),
                                     sum);
      });
    });
  }

  // All other operations are those of `ops`.
  void parallel_for(std::int64_t count, std::int64_t item_cost, const LoopBody& body) override {
    ops_->parallel_for(count, item_cost, body);
  }
  std::int64_t max_parts() const noexcept override { return ops_->max_parts(); }
  Result<std::unique_ptr<PreparedWeight>> prepare_weight(const WeightView& weight, DType compute,
                                                         WeightUse use) override {
    return ops_->prepare_weight(weight, compute, use);
  }
  void linear_group(host::ConstMatrix x, std::span<const host::LinearTerm> terms,
                    Store store) override {
    ops_->linear_group(x, terms, store);
  }
  void linear_backward_input(host::ConstMatrix dy, const PreparedWeight& weight,
                             std::int64_t first_input, Store store, host::Matrix dx) override {
    ops_->linear_backward_input(dy, weight, first_input, store, dx);
  }
  void add_low_rank(host::ConstMatrix x, std::span<const host::LowRankTerm> terms,
                    host::Matrix y) override {
    ops_->add_low_rank(x, terms, y);
  }
  void embed(std::span<const std::int32_t> ids, const WeightView& table,
             host::Matrix out) override {
    ops_->embed(ids, table, out);
  }
  void embed_tied(std::span<const std::int32_t> ids, const PreparedWeight& weight,
                  host::Matrix out) override {
    ops_->embed_tied(ids, weight, out);
  }
  void rms_norm(host::ConstMatrix x, std::span<const float> gain, float eps, host::Matrix out,
                std::span<float> rstd) override {
    ops_->rms_norm(x, gain, eps, out, rstd);
  }
  void rope(host::Matrix x, std::int64_t head_dim, std::span<const std::int32_t> positions,
            const host::RopeTables& tables, RopeDirection direction) override {
    ops_->rope(x, head_dim, positions, tables, direction);
  }
  void swiglu(host::ConstMatrix gate, host::ConstMatrix up, host::Matrix out) override {
    ops_->swiglu(gate, up, out);
  }
  void swiglu_backward(host::ConstMatrix dout, host::ConstMatrix gate, host::ConstMatrix up,
                       host::Matrix dgate, host::Matrix dup) override {
    ops_->swiglu_backward(dout, gate, up, dgate, dup);
  }
  void add_scaled(host::ConstMatrix x, float factor, host::Matrix y) override {
    ops_->add_scaled(x, factor, y);
  }
  void scale(float factor, host::Matrix x) override { ops_->scale(factor, x); }
  void scale_columns(host::ConstMatrix x, std::span<const float> factors,
                     std::span<const float> bias, Store store, host::Matrix out) override {
    ops_->scale_columns(x, factors, bias, store, out);
  }
  void narrow(host::ConstMatrix x, std::span<std::uint16_t> out) override { ops_->narrow(x, out); }
  void widen(std::span<const std::uint16_t> x, host::Matrix out) override { ops_->widen(x, out); }
  void adamw(const AdamWFactors<float>& factors, const AdamWTensor<float>& tensor) override {
    ops_->adamw(factors, tensor);
  }
  std::int64_t kv_page_bytes(const AttentionShape& shape) const noexcept override {
    return ops_->kv_page_bytes(shape);
  }
  void kv_append(const AttentionShape& shape, std::span<const AttentionSegment> segments,
                 host::ConstMatrix k, host::ConstMatrix v, const host::RopeTables& rotation,
                 host::KvLayer cache) override {
    ops_->kv_append(shape, segments, k, v, rotation, cache);
  }
  void attention(const AttentionShape& shape, std::span<const AttentionSegment> segments,
                 host::ConstMatrix q, host::KvLayer cache, host::Matrix out,
                 host::Matrix lse) override {
    ops_->attention(shape, segments, q, cache, out, lse);
  }
  void attention_backward_windows(const AttentionShape& shape,
                                  std::span<const AttentionSegment> segments,
                                  std::span<const host::KvGradient> gradients, host::ConstMatrix q,
                                  host::KvLayer cache, host::ConstMatrix out, host::ConstMatrix lse,
                                  host::ConstMatrix dout, host::Matrix dq) override {
    ops_->attention_backward_windows(shape, segments, gradients, q, cache, out, lse, dout, dq);
  }
  void log_softmax_gather(host::ConstMatrix logits, std::span<const std::int32_t> targets,
                          float inv_temperature, std::span<float> logprobs,
                          std::span<float> entropies) override {
    ops_->log_softmax_gather(logits, targets, inv_temperature, logprobs, entropies);
  }
  void log_softmax_backward(host::Matrix logits, std::span<const std::int32_t> targets,
                            float inv_temperature, std::span<const float> dlogprobs,
                            std::span<const float> dentropies) override {
    ops_->log_softmax_backward(logits, targets, inv_temperature, dlogprobs, dentropies);
  }

private:
  template <class Body>
  void in_steps(std::int64_t rows, const Body& body) const {
    for (std::int64_t first = 0; first < rows; first += step_) {
      body(first, std::min(step_, rows - first));
    }
  }
  // Adds to `to` what `sum` adds to zeros.
  template <class Sum>
  static void add(std::span<float> to, const Sum& sum) {
    std::vector<float> partial(to.size());
    sum(std::span(partial));
    for (std::size_t i = 0; i < to.size(); ++i) {
      to[i] += partial[i];
    }
  }
  template <class Sum>
  static void add(host::Matrix to, const Sum& sum) {
    std::vector<float> partial(static_cast<std::size_t>(to.rows * to.cols));
    const host::Matrix rows{partial.data(), to.rows, to.cols, to.cols};
    sum(rows);
    for (std::int64_t t = 0; t < to.rows; ++t) {
      for (std::int64_t j = 0; j < to.cols; ++j) {
        to.row(t)[j] += rows.row(t)[j];
      }
    }
  }

  std::unique_ptr<host::Ops> ops_;
  std::int64_t step_;
  BackendTraits traits_;
};

/// Opens devices that sum `step` rows of the reference operations at a time.
class SteppedBackend final : public BackendFactory {
public:
  explicit SteppedBackend(std::int64_t step) : step_(step) {}

  std::string_view name() const noexcept override { return "stepped"; }
  BackendTraits traits() const noexcept override { return {step_}; }
  Result<std::unique_ptr<Ops>> open(Workers& /*workers*/,
                                    const DeviceMemoryLimits& limits) const override {
    return host::make_backend(
        std::make_unique<SteppedOps>(make_reference_host_ops(), step_, traits()), limits);
  }
  std::int64_t weight_bytes(const WeightSizes& weights) const override {
    return reference_backend().weight_bytes(weights);
  }
  std::int64_t kv_page_bytes(const AttentionShape& shape) const override {
    return reference_backend().kv_page_bytes(shape);
  }
  std::int64_t rounded_row_bytes(DType dtype, std::int64_t cols) const override {
    return reference_backend().rounded_row_bytes(dtype, cols);
  }
  std::int64_t weight_gradient_bytes(std::int64_t rows, std::int64_t cols) const override {
    return reference_backend().weight_gradient_bytes(rows, cols);
  }

private:
  std::int64_t step_;
};

}  // namespace tidemill::engines
