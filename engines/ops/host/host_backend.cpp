// SPDX-License-Identifier: Apache-2.0
// Runs operations on device addresses by calling operations on pointers.
#include "engines/ops/host/host_backend.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <utility>

#include "base/check.hpp"
#include "base/tensor/aligned_bytes.hpp"
#include "base/tensor/float_tensor.hpp"
#include "engines/ops/shapes.hpp"
#include "engines/ops/weight_elements.hpp"
#include "engines/optimizer/gradient_norm.hpp"
#include "engines/sampling/sampler.hpp"

namespace tidemill::engines::host {
namespace {

// The lists of a pass, in host memory.
class HostPass final : public PreparedPass {
public:
  explicit HostPass(PassContents contents)
      : contents_(std::move(contents)), segments_(contents_.segments()) {}

  static std::span<const std::int32_t> indices(const IndexList& list) {
    if (list.empty()) {
      return {};
    }
    const auto& pass = dynamic_cast<const HostPass&>(*list.pass);
    return pass.contents_.indices().subspan(static_cast<std::size_t>(list.first),
                                            static_cast<std::size_t>(list.size));
  }
  static std::span<const AttentionSegment> segments(const SegmentList& list) {
    return list.empty() ? std::span<const AttentionSegment>() : list.pass->at(list);
  }
  [[nodiscard]] std::span<const AttentionSegment> at(const SegmentList& list) const override {
    return std::span(segments_).subspan(static_cast<std::size_t>(list.first),
                                        static_cast<std::size_t>(list.size));
  }
  static std::span<const RowRun> runs(const RunList& list) {
    return list.empty() ? std::span<const RowRun>() : list.pass->at(list);
  }
  [[nodiscard]] std::span<const RowRun> at(const RunList& list) const override {
    return contents_.runs().subspan(static_cast<std::size_t>(list.first),
                                    static_cast<std::size_t>(list.size));
  }

private:
  PassContents contents_;
  std::vector<AttentionSegment> segments_;  // their page tables are in `contents_`
};

// A table in host memory: a tensor that it shares, or a copy of its own.
class HostTable final : public PreparedTable {
public:
  explicit HostTable(Tensor tensor) : tensor_(std::move(tensor)) {}

  [[nodiscard]] std::int64_t num_rows() const noexcept override { return tensor_.shape[0]; }
  [[nodiscard]] std::int64_t width() const noexcept override { return tensor_.shape[1]; }
  [[nodiscard]] DType dtype() const noexcept override { return tensor_.dtype; }
  [[nodiscard]] std::int64_t size_bytes() const noexcept override {
    return static_cast<std::int64_t>(tensor_.data.size_bytes());
  }
  [[nodiscard]] const Tensor& tensor() const noexcept { return tensor_; }

private:
  Tensor tensor_;
};

// A table with memory of its own, which the table that replaces it can reuse.
class CopiedTable final : public PreparedTable {
public:
  CopiedTable(AlignedBytes bytes, DType dtype, std::int64_t rows, std::int64_t width)
      : bytes_(std::move(bytes)), view_{bytes_.data(), dtype, rows, width} {}

  [[nodiscard]] std::int64_t num_rows() const noexcept override { return view_.out_features; }
  [[nodiscard]] std::int64_t width() const noexcept override { return view_.in_features; }
  [[nodiscard]] DType dtype() const noexcept override { return view_.dtype; }
  [[nodiscard]] std::int64_t size_bytes() const noexcept override { return bytes_.size(); }
  [[nodiscard]] const WeightView& view() const noexcept { return view_; }
  [[nodiscard]] AlignedBytes take_bytes() noexcept { return std::move(bytes_); }

private:
  AlignedBytes bytes_;
  WeightView view_;
};

// A table that is the weight of the head too.
class TiedTable final : public PreparedTable {
public:
  explicit TiedTable(const PreparedWeight& weight) : weight_(weight) {}

  [[nodiscard]] std::int64_t num_rows() const noexcept override { return weight_.out_features(); }
  [[nodiscard]] std::int64_t width() const noexcept override { return weight_.in_features(); }
  [[nodiscard]] DType dtype() const noexcept override { return DType::kBlockI8; }
  [[nodiscard]] std::int64_t size_bytes() const noexcept override { return 0; }
  [[nodiscard]] const PreparedWeight& weight() const noexcept { return weight_; }

private:
  const PreparedWeight& weight_;
};

WeightView view_of(const PreparedTable& table) {
  if (const auto* shared = dynamic_cast<const HostTable*>(&table)) {
    return weight_view(shared->tensor());
  }
  return dynamic_cast<const CopiedTable&>(table).view();
}

class HostBackend final : public engines::Ops {
public:
  HostBackend(std::unique_ptr<host::Ops> ops, std::unique_ptr<HostMemory> memory,
              Execution execution)
      : ops_(std::move(ops)),
        memory_(std::move(memory)),
        scratch_(*memory_),
        execution_(execution),
        samplers_(static_cast<std::size_t>(ops_->max_parts()), Sampler(ops_->mass_kernels())),
        wide_sampler_(ops_->mass_kernels(), [this](std::size_t count, const auto& body) {
          ops_->parallel_for(static_cast<std::int64_t>(count), 2 * std::int64_t{kMassBlock},
                             [&](std::int64_t, std::int64_t begin, std::int64_t end) {
                               body(static_cast<std::size_t>(begin), static_cast<std::size_t>(end));
                             });
        }) {
    memory_->hold_freed(execution == Execution::kDeferred);
  }

  [[nodiscard]] std::string_view description() const noexcept override {
    return ops_->description();
  }
  [[nodiscard]] BackendTraits traits() const noexcept override { return ops_->traits(); }

  // -- memory ------------------------------------------------------------------------------------

  [[nodiscard]] DeviceMemory& memory() noexcept override { return *memory_; }
  [[nodiscard]] ScratchStack& scratch() noexcept override { return scratch_; }

  [[nodiscard]] Status synchronize() override {
    for (const auto& operation : std::exchange(pending_, {})) {
      operation();
    }
    passes_.clear();
    memory_->release_freed();
    return {};
  }

  [[nodiscard]] Status read(engines::ConstMatrix from, std::span<float> to) override {
    TIDEMILL_CHECK(std::ssize(to) == from.rows * from.cols) << to.size();
    TIDEMILL_RETURN_IF_ERROR(synchronize());
    const ConstMatrix rows = in(from);
    for (std::int64_t t = 0; t < rows.rows; ++t) {
      std::copy_n(rows.row(t), rows.cols, to.data() + t * rows.cols);
    }
    return {};
  }

  void write(std::span<const float> from, engines::Matrix to) override {
    TIDEMILL_CHECK(std::ssize(from) == to.rows * to.cols) << from.size();
    if (execution_ == Execution::kImmediate) {
      write_rows(from, out(to));
      return;
    }
    run([this, values = std::vector<float>(from.begin(), from.end()), to] {
      write_rows(values, out(to));
    });
  }

  [[nodiscard]] Result<std::unique_ptr<PreparedPass>> prepare_pass(
      PassContents contents, std::unique_ptr<PreparedPass> old) override {
    if (old != nullptr && !pending_.empty()) {
      passes_.push_back(std::move(old));
    }
    return std::unique_ptr<PreparedPass>(std::make_unique<HostPass>(std::move(contents)));
  }

  void copy(engines::ConstMatrix from, engines::Matrix to) override {
    TIDEMILL_CHECK(from.rows == to.rows && from.cols == to.cols)
        << from.rows << " x " << from.cols << " to " << to.rows << " x " << to.cols;
    run([this, from, to] { copy_now(from, to); });
  }

  void copy_rows(engines::ConstMatrix from, IndexList from_rows, engines::Matrix to,
                 IndexList to_rows) override {
    TIDEMILL_CHECK(from.cols == to.cols && from.dtype == to.dtype);
    TIDEMILL_CHECK(from_rows.empty() || to_rows.empty() || from_rows.size == to_rows.size);
    run([this, from, from_rows, to, to_rows] { copy_rows_now(from, from_rows, to, to_rows); });
  }

  void fill(float value, engines::Matrix to) override {
    TIDEMILL_CHECK(to.dtype == DType::kF32);
    run([this, value, to] {
      const Matrix rows = out(to);
      parallel_for_rows(rows.rows, rows.cols,
                        [&](std::int64_t t) { std::fill_n(rows.row(t), rows.cols, value); });
    });
  }

  void copy_page(engines::KvLayer cache, std::int64_t page_bytes, std::int32_t from,
                 std::int32_t to) override {
    run([=, this] {
      std::byte* pages = memory_->pointer(cache.data);
      std::memcpy(pages + to * page_bytes, pages + from * page_bytes,
                  static_cast<std::size_t>(page_bytes));
    });
  }

  // -- linear layers -----------------------------------------------------------------------------

  [[nodiscard]] Result<std::unique_ptr<PreparedWeight>> prepare_weight(const WeightView& weight,
                                                                       DType compute,
                                                                       WeightUse use) override {
    return ops_->prepare_weight(weight, compute, use);
  }

  [[nodiscard]] Result<std::unique_ptr<PreparedWeight>> replace_weight(
      std::unique_ptr<PreparedWeight> old, const WeightView& weight, DType compute,
      WeightUse use) override {
    TIDEMILL_RETURN_IF_ERROR(synchronize());  // pending operations may use the old weight
    return ops_->replace_weight(std::move(old), weight, compute, use);
  }

  [[nodiscard]] Result<std::unique_ptr<PreparedWeight>> replace_weight(
      std::unique_ptr<PreparedWeight> old, engines::ConstMatrix weight, WeightRows rows,
      DType compute, WeightUse use) override {
    check_weight_rows(rows, weight.rows);
    TIDEMILL_RETURN_IF_ERROR(synchronize());
    return ops_->replace_weight(std::move(old), weight_in(weight), rows, compute, use);
  }

  [[nodiscard]] Result<std::unique_ptr<PreparedTable>> prepare_table(const Tensor& table) override {
    TIDEMILL_RETURN_IF_ERROR(check_weight_types(table.dtype, DType::kF32));
    return std::unique_ptr<PreparedTable>(std::make_unique<HostTable>(table));
  }

  [[nodiscard]] std::unique_ptr<PreparedTable> tied_table(const PreparedWeight& weight) override {
    return std::make_unique<TiedTable>(weight);
  }

  [[nodiscard]] Result<std::unique_ptr<PreparedTable>> replace_table(
      std::unique_ptr<PreparedTable> old, engines::ConstMatrix table, WeightRows rows,
      DType dtype) override {
    TIDEMILL_CHECK(dtype == DType::kF32 || dtype == DType::kBF16) << dtype_name(dtype);
    check_weight_rows(rows, table.rows);
    TIDEMILL_RETURN_IF_ERROR(synchronize());
    const std::int64_t bytes = table.rows * table.cols * element_bytes(dtype);
    AlignedBytes memory;
    if (auto* copied = dynamic_cast<CopiedTable*>(old.get());
        copied != nullptr && copied->size_bytes() == bytes) {
      memory = copied->take_bytes();
    } else {
      TIDEMILL_CHECK(rows.first == 0) << "the rows before " << rows.first << " are not in `old`";
      old.reset();  // freed first: holding both would double peak memory
      memory = AlignedBytes(bytes);
    }
    const engines::ConstMatrix from = table.slice_rows(rows.first, rows.count);
    const std::int64_t row_bytes = table.cols * element_bytes(dtype);
    std::byte* to = memory.data() + rows.first * row_bytes;
    if (dtype == DType::kF32) {
      std::memcpy(to, weight_in(from).data, static_cast<std::size_t>(rows.count * row_bytes));
    } else {
      ops_->narrow(in(from), {reinterpret_cast<std::uint16_t*>(to),
                              static_cast<std::size_t>(rows.count * table.cols)});
    }
    return std::unique_ptr<PreparedTable>(
        std::make_unique<CopiedTable>(std::move(memory), dtype, table.rows, table.cols));
  }

  void linear(engines::ConstMatrix x, const PreparedWeight& weight, ConstVector bias, Store store,
              engines::Matrix y) override {
    run([this, x, &weight, bias, store, y] {
      ops_->linear(in(x), weight, in(bias), store, out(y));
    });
  }

  void linear_group(engines::ConstMatrix x, std::span<const engines::LinearTerm> terms,
                    Store store) override {
    run([this, x, terms = std::vector(terms.begin(), terms.end()), store] {
      std::vector<LinearTerm> host_terms;
      host_terms.reserve(terms.size());
      for (const engines::LinearTerm& term : terms) {
        host_terms.push_back({term.weight, in(term.bias), out(term.y), term.first_output});
      }
      ops_->linear_group(in(x), host_terms, store);
    });
  }

  void linear_backward_input(engines::ConstMatrix dy, const PreparedWeight& weight,
                             std::int64_t first_input, Store store, engines::Matrix dx) override {
    run([this, dy, &weight, first_input, store, dx] {
      ops_->linear_backward_input(in(dy), weight, first_input, store, out(dx));
    });
  }

  void linear_backward_weight(engines::ConstMatrix dy, engines::ConstMatrix x,
                              engines::Matrix dw) override {
    run([=, this] { ops_->linear_backward_weight(in(dy), in(x), out(dw)); });
  }

  void bias_backward(engines::ConstMatrix dy, Vector dbias) override {
    run([=, this] { ops_->bias_backward(in(dy), out(dbias)); });
  }

  void add_low_rank(engines::ConstMatrix x, RunList runs,
                    std::span<const engines::LowRankTerm> terms, engines::Matrix y) override {
    run([this, x, runs, terms = std::vector(terms.begin(), terms.end()), y] {
      std::vector<LowRankTerm> host_terms;
      host_terms.reserve(static_cast<std::size_t>(runs.size));
      for (const RowRun& rows : HostPass::runs(runs)) {
        TIDEMILL_CHECK(rows.adapter < std::ssize(terms)) << rows.adapter;
        const engines::LowRankTerm& term = terms[static_cast<std::size_t>(rows.adapter)];
        if (term.a != nullptr) {
          host_terms.push_back(
              {rows.first_row, rows.num_rows, term.a, term.b, term.scale, in(term.scaled_c)});
        }
      }
      ops_->add_low_rank(in(x), host_terms, out(y));
    });
  }

  // -- rows --------------------------------------------------------------------------------------

  void embed(IndexList ids, const PreparedTable& table, engines::Matrix to) override {
    run([this, ids, &table, to] {
      if (const auto* tied = dynamic_cast<const TiedTable*>(&table)) {
        ops_->embed_tied(HostPass::indices(ids), tied->weight(), out(to));
      } else {
        ops_->embed(HostPass::indices(ids), view_of(table), out(to));
      }
    });
  }

  void embed_backward(IndexList ids, engines::ConstMatrix dout, engines::Matrix dtable) override {
    run([=, this] { ops_->embed_backward(HostPass::indices(ids), in(dout), out(dtable)); });
  }

  void rms_norm(engines::ConstMatrix x, ConstVector gain, float eps, engines::Matrix to,
                Vector rstd) override {
    run([=, this] { ops_->rms_norm(in(x), in(gain), eps, out(to), out(rstd)); });
  }

  void rms_norm_backward(engines::ConstMatrix dout, engines::ConstMatrix x, ConstVector gain,
                         ConstVector rstd, Store store, engines::Matrix dx, Vector dgain) override {
    run([=, this] {
      ops_->rms_norm_backward(in(dout), in(x), in(gain), in(rstd), store, out(dx), out(dgain));
    });
  }

  void rope(engines::Matrix x, std::int64_t head_dim, IndexList positions,
            const engines::RopeTables& tables, RopeDirection direction) override {
    run([=, this] {
      ops_->rope(out(x), head_dim, HostPass::indices(positions), in(tables), direction);
    });
  }

  void swiglu(engines::ConstMatrix gate, engines::ConstMatrix up, engines::Matrix to) override {
    run([=, this] { ops_->swiglu(in(gate), in(up), out(to)); });
  }

  void swiglu_backward(engines::ConstMatrix dout, engines::ConstMatrix gate,
                       engines::ConstMatrix up, engines::Matrix dgate,
                       engines::Matrix dup) override {
    run([=, this] { ops_->swiglu_backward(in(dout), in(gate), in(up), out(dgate), out(dup)); });
  }

  void add_scaled(engines::ConstMatrix x, float factor, engines::Matrix y) override {
    run([=, this] { ops_->add_scaled(in(x), factor, out(y)); });
  }

  void scale(float factor, engines::Matrix x) override {
    run([=, this] { ops_->scale(factor, out(x)); });
  }

  void scale_columns(engines::ConstMatrix x, ConstVector factors, ConstVector bias, Store store,
                     engines::Matrix to) override {
    run([=, this] { ops_->scale_columns(in(x), in(factors), in(bias), store, out(to)); });
  }

  void scale_columns_backward(engines::ConstMatrix dout, engines::ConstMatrix x,
                              Vector dfactors) override {
    run([=, this] { ops_->scale_columns_backward(in(dout), in(x), out(dfactors)); });
  }

  void add_transposed(engines::ConstMatrix x, engines::Matrix y) override {
    TIDEMILL_CHECK(x.rows == y.cols && x.cols == y.rows);
    run([=, this] {
      const ConstMatrix from = in(x);
      const Matrix to = out(y);
      parallel_for_rows(to.rows, 4 * to.cols, [&](std::int64_t t) {
        for (std::int64_t j = 0; j < to.cols; ++j) {
          to.row(t)[j] += from.row(j)[t];
        }
      });
    });
  }

  // -- optimizer ---------------------------------------------------------------------------------

  void adamw(const AdamWFactors<float>& factors, const AdamWVectors& tensor) override {
    run([=, this] {
      ops_->adamw(factors, {out(tensor.weights), in(tensor.gradient), out(tensor.first_moment),
                            out(tensor.second_moment)});
    });
  }

  [[nodiscard]] Result<double> squared_norm(ConstVector values, double sum) override {
    TIDEMILL_RETURN_IF_ERROR(synchronize());
    const std::span<const float> all = in(values);
    std::vector<double> sums(norm_blocks(all.size()));
    ops_->parallel_for(
        std::ssize(sums), std::int64_t{kNormBlock} / 2,
        [&](std::int64_t, std::int64_t begin, std::int64_t end) {
          const std::size_t first = static_cast<std::size_t>(begin) * kNormBlock;
          const std::size_t last = std::min(static_cast<std::size_t>(end) * kNormBlock, all.size());
          block_squares<float>(all.subspan(first, last - first),
                               std::span(sums).subspan(static_cast<std::size_t>(begin),
                                                       static_cast<std::size_t>(end - begin)));
        });
    for (const double block : sums) {
      sum += block;
    }
    return sum;
  }

  // -- attention ---------------------------------------------------------------------------------

  [[nodiscard]] std::int64_t kv_page_bytes(const AttentionShape& shape) const noexcept override {
    return ops_->kv_page_bytes(shape);
  }

  void kv_append(const AttentionShape& shape, SegmentList segments, engines::ConstMatrix k,
                 engines::ConstMatrix v, const engines::RopeTables& rotation,
                 engines::KvLayer cache) override {
    run([=, this] {
      ops_->kv_append(shape, HostPass::segments(segments), in(k), in(v), in(rotation), in(cache));
    });
  }

  void attention(const AttentionShape& shape, SegmentList segments, engines::ConstMatrix q,
                 engines::KvLayer cache, engines::Matrix to, engines::Matrix lse) override {
    run([=, this] {
      ops_->attention(shape, HostPass::segments(segments), in(q), in(cache), out(to), out(lse));
    });
  }

  void attention_backward_windows(const AttentionShape& shape, SegmentList segments,
                                  engines::ConstMatrix q, engines::KvLayer cache,
                                  engines::ConstMatrix from, engines::ConstMatrix lse,
                                  engines::ConstMatrix dout, engines::Matrix dk, engines::Matrix dv,
                                  engines::Matrix dq) override {
    run([=, this] {
      const auto windows = HostPass::segments(segments);
      std::vector<KvGradient> gradients;
      gradients.reserve(windows.size());
      for (const AttentionSegment& window : windows) {
        const std::int64_t count = window.first_position + window.num_tokens;
        TIDEMILL_CHECK(window.first_kv_row + count <= dk.rows) << dk.rows;
        gradients.push_back({out(dk.slice_rows(window.first_kv_row, count)),
                             out(dv.slice_rows(window.first_kv_row, count))});
      }
      ops_->attention_backward_windows(shape, windows, gradients, in(q), in(cache), in(from),
                                       in(lse), in(dout), out(dq));
    });
  }

  // -- token losses ------------------------------------------------------------------------------

  void log_softmax_gather(engines::ConstMatrix logits, IndexList targets, float inv_temperature,
                          Vector logprobs, Vector entropies) override {
    run([=, this] {
      ops_->log_softmax_gather(in(logits), HostPass::indices(targets), inv_temperature,
                               out(logprobs), out(entropies));
    });
  }

  void log_softmax_backward(engines::Matrix logits, IndexList targets, float inv_temperature,
                            ConstVector dlogprobs, ConstVector dentropies) override {
    run([=, this] {
      ops_->log_softmax_backward(out(logits), HostPass::indices(targets), inv_temperature,
                                 in(dlogprobs), in(dentropies));
    });
  }

  // -- sampling ----------------------------------------------------------------------------------

  [[nodiscard]] Result<std::vector<SampleOutcome>> sample(
      engines::ConstMatrix logits, std::span<const SampleRequest> requests) override {
    TIDEMILL_RETURN_IF_ERROR(synchronize());
    const ConstMatrix rows = in(logits);
    std::vector<SampleOutcome> outcomes(requests.size());
    // Workers divide the requests. Those that are left when each worker has the same number are
    // processed one by one, and workers divide the row.
    const auto whole = requests.size() / samplers_.size() * samplers_.size();
    ops_->parallel_for(static_cast<std::int64_t>(whole), 4 * rows.cols,
                       [&](std::int64_t part, std::int64_t begin, std::int64_t end) {
                         Sampler& sampler = samplers_[static_cast<std::size_t>(part)];
                         for (std::int64_t i = begin; i < end; ++i) {
                           const auto at = static_cast<std::size_t>(i);
                           sample_row(rows, requests[at], sampler, outcomes[at]);
                         }
                       });
    for (std::size_t i = whole; i < requests.size(); ++i) {
      sample_row(rows, requests[i], wide_sampler_, outcomes[i]);
    }
    add_logprobs(rows, requests, outcomes);
    return outcomes;
  }

private:
  template <class Operation>
  void run(Operation operation) {
    if (execution_ == Execution::kImmediate) {
      operation();
    } else {
      pending_.emplace_back(std::move(operation));
    }
  }

  // Return operands as pointers.
  [[nodiscard]] ConstMatrix in(engines::ConstMatrix m) const {
    TIDEMILL_CHECK(m.dtype == DType::kF32) << dtype_name(m.dtype);
    return {reinterpret_cast<const float*>(memory_->pointer(m.data)), m.rows, m.cols, m.stride};
  }
  [[nodiscard]] Matrix out(engines::Matrix m) const {
    TIDEMILL_CHECK(m.dtype == DType::kF32) << dtype_name(m.dtype);
    return {reinterpret_cast<float*>(memory_->pointer(m.data)), m.rows, m.cols, m.stride};
  }
  [[nodiscard]] std::span<const float> in(ConstVector v) const {
    return {reinterpret_cast<const float*>(memory_->pointer(v.data)),
            static_cast<std::size_t>(v.size)};
  }
  [[nodiscard]] std::span<float> out(Vector v) const {
    return {reinterpret_cast<float*>(memory_->pointer(v.data)), static_cast<std::size_t>(v.size)};
  }
  [[nodiscard]] RopeTables in(const engines::RopeTables& tables) const {
    return {in(tables.cosine), in(tables.sine)};
  }
  [[nodiscard]] KvLayer in(engines::KvLayer cache) const { return {memory_->pointer(cache.data)}; }

  [[nodiscard]] WeightView weight_in(engines::ConstMatrix weight) const {
    TIDEMILL_CHECK(weight.dtype == DType::kF32 && weight.stride == weight.cols);
    return {memory_->pointer(weight.data), DType::kF32, weight.rows, weight.cols};
  }

  [[nodiscard]] std::span<std::uint16_t> halves(engines::ConstMatrix m) const {
    TIDEMILL_CHECK(m.dtype == DType::kBF16 && m.stride == m.cols) << dtype_name(m.dtype);
    return {reinterpret_cast<std::uint16_t*>(memory_->pointer(m.data)),
            static_cast<std::size_t>(m.rows * m.cols)};
  }

  template <class Body>
  void parallel_for_rows(std::int64_t rows, std::int64_t row_cost, const Body& body) {
    ops_->parallel_for(rows, row_cost, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        body(t);
      }
    });
  }

  static void write_rows(std::span<const float> from, Matrix to) {
    for (std::int64_t t = 0; t < to.rows; ++t) {
      std::copy_n(from.data() + t * to.cols, to.cols, to.row(t));
    }
  }

  void copy_now(engines::ConstMatrix from, engines::Matrix to) {
    if (from.dtype == to.dtype) {
      copy_bytes(from, to);
    } else if (to.dtype == DType::kBF16) {
      ops_->narrow(in(from), halves(to));
    } else {
      ops_->widen(halves(from), out(to));
    }
  }

  void copy_bytes(engines::ConstMatrix from, engines::Matrix to) {
    const std::int64_t element = element_bytes(from.dtype);
    const std::byte* source = memory_->pointer(from.data);
    std::byte* target = memory_->pointer(to.data);
    parallel_for_rows(to.rows, to.cols * element / 16, [&](std::int64_t t) {
      std::memcpy(target + t * to.stride * element, source + t * from.stride * element,
                  static_cast<std::size_t>(to.cols * element));
    });
  }

  void copy_rows_now(engines::ConstMatrix from, IndexList from_rows, engines::Matrix to,
                     IndexList to_rows) {
    const auto sources = HostPass::indices(from_rows);
    const auto targets = HostPass::indices(to_rows);
    const std::int64_t element = element_bytes(from.dtype);
    const std::byte* source = memory_->pointer(from.data);
    std::byte* target = memory_->pointer(to.data);
    parallel_for_rows(
        std::max(from_rows.size, to_rows.size), to.cols * element / 16, [&](std::int64_t i) {
          const auto at = static_cast<std::size_t>(i);
          const std::int64_t a = sources.empty() ? i : sources[at];
          const std::int64_t b = targets.empty() ? i : targets[at];
          if (a >= 0 && b >= 0) {
            TIDEMILL_CHECK(a < from.rows && b < to.rows) << a << " to " << b;
            std::memcpy(target + b * to.stride * element, source + a * from.stride * element,
                        static_cast<std::size_t>(to.cols * element));
          }
        });
  }

  static void sample_row(ConstMatrix logits, const SampleRequest& request, Sampler& sampler,
                         SampleOutcome& outcome) {
    const std::span<const float> row(logits.row(request.row),
                                     static_cast<std::size_t>(logits.cols));
    const Result<std::int32_t> token =
        sampler.sample(row, *request.options, request.history, request.key, request.mask);
    if (token.ok()) {
      outcome.token = token.value();
    } else {
      outcome.error = token.status().message();
    }
  }

  // Adds the log-probabilities of the sampled tokens and the entropies. Consecutive rows of the
  // same temperature are scored together.
  void add_logprobs(ConstMatrix logits, std::span<const SampleRequest> requests,
                    std::span<SampleOutcome> outcomes) {
    const auto inverse_of = [&](std::size_t i) {
      const float temperature = requests[i].options->temperature;
      return temperature == 0.0F ? 1.0F : 1.0F / temperature;
    };
    for (std::size_t first = 0, end = 0; first < requests.size(); first = end) {
      const float inverse = inverse_of(first);
      std::vector<std::int32_t> targets;
      for (; end < requests.size() && inverse_of(end) == inverse &&
             requests[end].row - requests[first].row == std::ssize(targets);
           ++end) {
        targets.push_back(outcomes[end].token);
      }
      std::vector<float> logprobs(targets.size());
      std::vector<float> entropies(targets.size());
      ops_->log_softmax_gather(logits.slice_rows(requests[first].row, std::ssize(targets)), targets,
                               inverse, logprobs, entropies);
      for (std::size_t i = 0; i < targets.size(); ++i) {
        outcomes[first + i].logprob = logprobs[i];
        outcomes[first + i].entropy = requests[first + i].wants_entropy ? entropies[i] : 0.0F;
      }
    }
  }

  std::unique_ptr<host::Ops> ops_;
  std::unique_ptr<HostMemory> memory_;
  ScratchStack scratch_;
  Execution execution_;
  std::vector<std::function<void()>> pending_;
  std::vector<std::unique_ptr<PreparedPass>> passes_;  // replaced, but in use by `pending_`
  std::vector<Sampler> samplers_;                      // by part of a loop
  Sampler wide_sampler_;                               // divides a row among the workers
};

}  // namespace

std::unique_ptr<engines::Ops> make_backend(std::unique_ptr<Ops> ops,
                                           std::unique_ptr<HostMemory> memory,
                                           Execution execution) {
  return std::make_unique<HostBackend>(std::move(ops), std::move(memory), execution);
}

Result<std::unique_ptr<engines::Ops>> make_backend(std::unique_ptr<Ops> ops,
                                                   const DeviceMemoryLimits& limits) {
  TIDEMILL_ASSIGN_OR_RETURN(std::unique_ptr<MappedMemory> memory, MappedMemory::create(limits));
  return make_backend(std::move(ops), std::move(memory), Execution::kImmediate);
}

std::unique_ptr<engines::Ops> make_backend(std::unique_ptr<Ops> ops) {
  return make_backend(std::move(ops), std::make_unique<MappedMemory>(), Execution::kImmediate);
}

}  // namespace tidemill::engines::host
