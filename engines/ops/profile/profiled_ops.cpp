// SPDX-License-Identifier: Apache-2.0
// Operations that record their cost.
#include <algorithm>
#include <chrono>
#include <type_traits>
#include <utility>

#include "engines/ops/profile/op_profile.hpp"

namespace tidemill::engines {
namespace {

constexpr double kFloat = sizeof(float);

struct Cost {
  double flops = 0.0;
  double bytes = 0.0;
  DType operands = DType::kF32;
};

double count(ConstMatrix m) {
  return static_cast<double>(m.rows) * static_cast<double>(m.cols);
}

// Cost of an operation that reads and writes `matrices` matrices of the size of `m` in total and
// performs `flops` operations for each element of `m`.
Cost row_cost(ConstMatrix m, double matrices, double flops) {
  return {count(m) * flops, count(m) * matrices * kFloat};
}

// How much attention reads over some segments.
struct Seen {
  double by_queries = 0.0;  // pairs of a query and a position that it sees
  double positions = 0.0;   // cached positions, each counted once per segment
  double queries = 0.0;
};

Seen seen_by(const AttentionShape& shape, const SegmentList& segments) {
  Seen seen;
  if (segments.empty()) {
    return seen;
  }
  for (const AttentionSegment& segment : segments.pass->at(segments)) {
    for (std::int64_t t = 0; t < segment.num_tokens; ++t) {
      const std::int64_t all = segment.first_position + t + 1;
      seen.by_queries += static_cast<double>(shape.window == 0 ? all : std::min(all, shape.window));
    }
    seen.positions += static_cast<double>(segment.first_position + segment.num_tokens);
    seen.queries += static_cast<double>(segment.num_tokens);
  }
  return seen;
}

// Cost of attention that computes `products` products of a query with each position it sees, and
// reads or writes `query_matrices` matrices of the shape of the queries.
Cost attention_cost(const AttentionShape& shape, const SegmentList& segments, double products,
                    double query_matrices) {
  const Seen seen = seen_by(shape, segments);
  const auto query_cols = static_cast<double>(shape.num_heads * shape.head_dim);
  const auto key_cols = static_cast<double>(shape.num_kv_heads * shape.head_dim);
  return {2.0 * products * seen.by_queries * query_cols,
          2.0 * seen.positions * key_cols * static_cast<double>(dtype_bytes(shape.kv_dtype)) +
              query_matrices * seen.queries * query_cols * kFloat,
          shape.kv_dtype};
}

class ProfiledOps final : public Ops {
public:
  ProfiledOps(std::unique_ptr<Ops> ops, OpProfile& profile)
      : ops_(std::move(ops)), profile_(profile) {}

  [[nodiscard]] std::string_view description() const noexcept override {
    return ops_->description();
  }
  [[nodiscard]] BackendTraits traits() const noexcept override { return ops_->traits(); }
  [[nodiscard]] DeviceMemory& memory() noexcept override { return ops_->memory(); }
  [[nodiscard]] ScratchStack& scratch() noexcept override { return ops_->scratch(); }
  [[nodiscard]] Status synchronize() override { return ops_->synchronize(); }
  [[nodiscard]] Status read(ConstMatrix from, std::span<float> to) override {
    return record("read", row_cost(from, 2.0, 0.0), [&] { return ops_->read(from, to); });
  }
  void write(std::span<const float> from, Matrix to) override {
    record("write", row_cost(to, 2.0, 0.0), [&] { ops_->write(from, to); });
  }
  [[nodiscard]] Result<std::unique_ptr<PreparedPass>> prepare_pass(
      PassContents contents, std::unique_ptr<PreparedPass> old) override {
    return record("prepare_pass", {},
                  [&] { return ops_->prepare_pass(std::move(contents), std::move(old)); });
  }
  void copy(ConstMatrix from, Matrix to) override {
    const double bytes =
        count(from) * static_cast<double>(element_bytes(from.dtype) + element_bytes(to.dtype));
    record("copy", {0.0, bytes}, [&] { ops_->copy(from, to); });
  }
  void copy_rows(ConstMatrix from, IndexList from_rows, Matrix to, IndexList to_rows) override {
    const auto rows = static_cast<double>(std::max(from_rows.size, to_rows.size));
    const double bytes = 2.0 * rows * static_cast<double>(to.cols * element_bytes(to.dtype));
    record("copy_rows", {0.0, bytes}, [&] { ops_->copy_rows(from, from_rows, to, to_rows); });
  }
  void fill(float value, Matrix to) override {
    record("fill", row_cost(to, 1.0, 0.0), [&] { ops_->fill(value, to); });
  }
  void copy_page(KvLayer cache, std::int64_t page_bytes, std::int32_t from,
                 std::int32_t to) override {
    record("copy_page", {0.0, 2.0 * static_cast<double>(page_bytes)},
           [&] { ops_->copy_page(cache, page_bytes, from, to); });
  }
  [[nodiscard]] Result<std::unique_ptr<PreparedWeight>> prepare_weight(const WeightView& weight,
                                                                       DType compute,
                                                                       WeightUse use) override {
    return record("prepare_weight", {}, [&] { return ops_->prepare_weight(weight, compute, use); });
  }
  [[nodiscard]] Result<std::unique_ptr<PreparedWeight>> replace_weight(
      std::unique_ptr<PreparedWeight> old, const WeightView& weight, DType compute,
      WeightUse use) override {
    return record("prepare_weight", {},
                  [&] { return ops_->replace_weight(std::move(old), weight, compute, use); });
  }
  [[nodiscard]] Result<std::unique_ptr<PreparedWeight>> replace_weight(
      std::unique_ptr<PreparedWeight> old, ConstMatrix weight, WeightRows rows, DType compute,
      WeightUse use) override {
    return record("prepare_weight", {},
                  [&] { return ops_->replace_weight(std::move(old), weight, rows, compute, use); });
  }
  [[nodiscard]] std::unique_ptr<PreparedTable> tied_table(const PreparedWeight& weight) override {
    return ops_->tied_table(weight);
  }
  [[nodiscard]] Result<std::unique_ptr<PreparedTable>> prepare_table(const Tensor& table) override {
    return ops_->prepare_table(table);
  }
  [[nodiscard]] Result<std::unique_ptr<PreparedTable>> replace_table(
      std::unique_ptr<PreparedTable> old, ConstMatrix table, WeightRows rows,
      DType dtype) override {
    return record("prepare_weight", {},
                  [&] { return ops_->replace_table(std::move(old), table, rows, dtype); });
  }
  void linear(ConstMatrix x, const PreparedWeight& weight, ConstVector bias, Store store,
              Matrix y) override {
    const std::string name = "linear " + std::to_string(weight.in_features()) + " x " +
                             std::to_string(weight.out_features());
    record(name, linear_cost(x, weight, y), [&] { ops_->linear(x, weight, bias, store, y); });
  }
  void linear_group(ConstMatrix x, std::span<const LinearTerm> terms, Store store) override {
    std::string name = "linear " + std::to_string(x.cols) + " x ";
    Cost cost;
    for (std::size_t i = 0; i < terms.size(); ++i) {
      const Cost one = linear_cost(x, *terms[i].weight, terms[i].y);
      name += (i == 0 ? "" : "+") + std::to_string(terms[i].y.cols);
      cost = {cost.flops + one.flops, cost.bytes + one.bytes, one.operands};
    }
    record(name, cost, [&] { ops_->linear_group(x, terms, store); });
  }
  void add_low_rank(ConstMatrix x, RunList runs, std::span<const LowRankTerm> terms,
                    Matrix y) override {
    const std::string name = "low rank " + std::to_string(x.cols) + " x " + std::to_string(y.cols);
    record(name, low_rank_cost(runs, terms, x, y), [&] { ops_->add_low_rank(x, runs, terms, y); });
  }
  void linear_backward_input(ConstMatrix dy, const PreparedWeight& weight, std::int64_t first_input,
                             Store store, Matrix dx) override {
    const std::string name =
        "linear dx " + std::to_string(dx.cols) + " x " + std::to_string(weight.out_features());
    record(name, linear_cost(dy, weight, dx),
           [&] { ops_->linear_backward_input(dy, weight, first_input, store, dx); });
  }
  void linear_backward_weight(ConstMatrix dy, ConstMatrix x, Matrix dw) override {
    const std::string name =
        "linear dw " + std::to_string(dw.cols) + " x " + std::to_string(dw.rows);
    record(name,
           {2.0 * count(dy) * static_cast<double>(x.cols),
            (count(dy) + count(x) + 2.0 * count(dw)) * kFloat},
           [&] { ops_->linear_backward_weight(dy, x, dw); });
  }
  void bias_backward(ConstMatrix dy, Vector dbias) override {
    record("bias_backward", row_cost(dy, 1.0, 1.0), [&] { ops_->bias_backward(dy, dbias); });
  }
  void embed(IndexList ids, const PreparedTable& table, Matrix out) override {
    record("embed", row_cost(out, 2.0, 0.0), [&] { ops_->embed(ids, table, out); });
  }
  void embed_backward(IndexList ids, ConstMatrix dout, Matrix dtable) override {
    record("embed_backward", row_cost(dout, 3.0, 1.0),
           [&] { ops_->embed_backward(ids, dout, dtable); });
  }
  void rms_norm(ConstMatrix x, ConstVector gain, float eps, Matrix out, Vector rstd) override {
    record("rms_norm", row_cost(x, 2.0, 4.0), [&] { ops_->rms_norm(x, gain, eps, out, rstd); });
  }
  void rms_norm_backward(ConstMatrix dout, ConstMatrix x, ConstVector gain, ConstVector rstd,
                         Store store, Matrix dx, Vector dgain) override {
    record("rms_norm_backward", row_cost(x, store == Store::kAdd ? 4.0 : 3.0, 8.0),
           [&] { ops_->rms_norm_backward(dout, x, gain, rstd, store, dx, dgain); });
  }
  void rope(Matrix x, std::int64_t head_dim, IndexList positions, const RopeTables& tables,
            RopeDirection direction) override {
    record("rope", row_cost(x, 2.0, 3.0),
           [&] { ops_->rope(x, head_dim, positions, tables, direction); });
  }
  void swiglu(ConstMatrix gate, ConstMatrix up, Matrix out) override {
    record("swiglu", row_cost(gate, 3.0, 4.0), [&] { ops_->swiglu(gate, up, out); });
  }
  void swiglu_backward(ConstMatrix dout, ConstMatrix gate, ConstMatrix up, Matrix dgate,
                       Matrix dup) override {
    record("swiglu_backward", row_cost(gate, 5.0, 10.0),
           [&] { ops_->swiglu_backward(dout, gate, up, dgate, dup); });
  }
  void add_scaled(ConstMatrix x, float factor, Matrix y) override {
    record("add_scaled", row_cost(x, 3.0, 2.0), [&] { ops_->add_scaled(x, factor, y); });
  }
  void scale(float factor, Matrix x) override {
    record("scale", row_cost(x, 2.0, 1.0), [&] { ops_->scale(factor, x); });
  }
  void scale_columns(ConstMatrix x, ConstVector factors, ConstVector bias, Store store,
                     Matrix out) override {
    record("scale_columns", row_cost(x, 2.0, 2.0),
           [&] { ops_->scale_columns(x, factors, bias, store, out); });
  }
  void scale_columns_backward(ConstMatrix dout, ConstMatrix x, Vector dfactors) override {
    record("scale_columns_backward", row_cost(x, 2.0, 2.0),
           [&] { ops_->scale_columns_backward(dout, x, dfactors); });
  }
  void add_transposed(ConstMatrix x, Matrix y) override {
    record("add_transposed", row_cost(x, 3.0, 1.0), [&] { ops_->add_transposed(x, y); });
  }
  void adamw(const AdamWFactors<float>& factors, const AdamWVectors& tensor) override {
    const auto size = static_cast<double>(tensor.weights.size);
    record("adamw", {13.0 * size, 7.0 * size * kFloat}, [&] { ops_->adamw(factors, tensor); });
  }
  [[nodiscard]] std::int64_t kv_page_bytes(const AttentionShape& shape) const noexcept override {
    return ops_->kv_page_bytes(shape);
  }
  void kv_append(const AttentionShape& shape, SegmentList segments, ConstMatrix k, ConstMatrix v,
                 const RopeTables& rotation, KvLayer cache) override {
    record("kv_append", row_cost(k, 4.0, 0.0),
           [&] { ops_->kv_append(shape, segments, k, v, rotation, cache); });
  }
  void attention(const AttentionShape& shape, SegmentList segments, ConstMatrix q, KvLayer cache,
                 Matrix out, Matrix lse) override {
    record("attention", attention_cost(shape, segments, 2.0, 2.0),
           [&] { ops_->attention(shape, segments, q, cache, out, lse); });
  }
  void attention_backward_windows(const AttentionShape& shape, SegmentList segments, ConstMatrix q,
                                  KvLayer cache, ConstMatrix out, ConstMatrix lse, ConstMatrix dout,
                                  Matrix dk, Matrix dv, Matrix dq) override {
    record("attention_backward", attention_cost(shape, segments, 5.0, 4.0), [&] {
      ops_->attention_backward_windows(shape, segments, q, cache, out, lse, dout, dk, dv, dq);
    });
  }
  void log_softmax_gather(ConstMatrix logits, IndexList targets, float inv_temperature,
                          Vector logprobs, Vector entropies) override {
    record("log_softmax_gather", row_cost(logits, 1.0, 3.0), [&] {
      ops_->log_softmax_gather(logits, targets, inv_temperature, logprobs, entropies);
    });
  }
  void log_softmax_backward(Matrix logits, IndexList targets, float inv_temperature,
                            ConstVector dlogprobs, ConstVector dentropies) override {
    record("log_softmax_backward", row_cost(logits, 2.0, 4.0), [&] {
      ops_->log_softmax_backward(logits, targets, inv_temperature, dlogprobs, dentropies);
    });
  }

  [[nodiscard]] Result<double> squared_norm(ConstVector values, double sum) override {
    const auto size = static_cast<double>(values.size);
    return record("squared_norm", {2.0 * size, size * kFloat},
                  [&] { return ops_->squared_norm(values, sum); });
  }
  [[nodiscard]] Result<std::vector<SampleOutcome>> sample(
      ConstMatrix logits, std::span<const SampleRequest> requests) override {
    const double elements =
        static_cast<double>(std::ssize(requests)) * static_cast<double>(logits.cols);
    return record("sample", {0.0, elements * kFloat},
                  [&] { return ops_->sample(logits, requests); });
  }

private:
  static Cost linear_cost(ConstMatrix x, const PreparedWeight& weight, ConstMatrix y) {
    // A weight that is smaller than its elements in f32 has a narrower type: padding to whole
    // panels only makes f32 weights larger.
    const double f32_bytes =
        static_cast<double>(weight.out_features() * weight.in_features()) * kFloat;
    const auto bytes = static_cast<double>(weight.size_bytes());
    return {2.0 * count(x) * static_cast<double>(y.cols), bytes + (count(x) + count(y)) * kFloat,
            bytes < f32_bytes ? DType::kBF16 : DType::kF32};
  }

  static Cost low_rank_cost(RunList runs, std::span<const LowRankTerm> terms, ConstMatrix x,
                            ConstMatrix y) {
    Cost cost;
    if (runs.empty()) {
      return cost;
    }
    for (const RowRun& run : runs.pass->at(runs)) {
      const LowRankTerm& term = terms[static_cast<std::size_t>(run.adapter)];
      if (term.a == nullptr) {
        continue;
      }
      const auto rows = static_cast<double>(run.num_rows);
      const auto features = static_cast<double>(x.cols + y.cols);
      cost.flops += 2.0 * rows * features * static_cast<double>(term.a->out_features());
      cost.bytes += static_cast<double>(term.a->size_bytes() + term.b->size_bytes()) +
                    rows * (features + static_cast<double>(y.cols)) * kFloat;
    }
    return cost;
  }

  template <class Body>
  std::invoke_result_t<Body> record(const std::string& name, Cost cost, const Body& body) {
    // Adds the elapsed time when the body returns.
    struct Timer {
      OpRecord& record;
      std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
      ~Timer() {
        record.seconds +=
            std::chrono::duration<double>{std::chrono::steady_clock::now() - start}.count();
      }
    };
    OpRecord& to = profile_.records[name];
    ++to.calls;
    to.flops += cost.flops;
    to.bytes += cost.bytes;
    to.operands = cost.operands;
    const Timer timer{to};
    return body();
  }

  std::unique_ptr<Ops> ops_;
  OpProfile& profile_;
};

}  // namespace

double OpProfile::seconds() const noexcept {
  double sum = 0.0;
  for (const auto& [name, record] : records) {
    sum += record.seconds;
  }
  return sum;
}

std::unique_ptr<Ops> make_profiled_ops(std::unique_ptr<Ops> ops, OpProfile& profile) {
  return std::make_unique<ProfiledOps>(std::move(ops), profile);
}

}  // namespace tidemill::engines
