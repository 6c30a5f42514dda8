// SPDX-License-Identifier: Apache-2.0
// All calls of oneDNN. It throws; what it throws ends here.
//
// Everything runs inside `Team::share`, so that each calling thread has set OpenMP to one thread
// before a primitive, which keeps the number of threads it was made with, exists.
#include "engines/ops/cpu/onednn_matmul.hpp"

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <cstring>
#include <dnnl.hpp>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "base/random.hpp"
#include "engines/ops/weight_elements.hpp"

namespace tidemill::engines::cpu {
namespace {

using dnnl::memory;

// The heights of all products. One row alone would take another path through oneDNN.
constexpr std::array<std::int64_t, 8> kHeights = {2, 4, 8, 16, 32, 64, 128, 256};
// Slabs end at multiples of this many columns; smaller weights are not worth oneDNN's call.
constexpr std::int64_t kSlabColumns = 64;
constexpr std::int64_t kSmallest = 64;

memory::data_type dnnl_type(DType dtype) {
  return dtype == DType::kBF16 ? memory::data_type::bf16 : memory::data_type::f32;
}

// The shape of one slab's product but for its height.
struct SlabShape {
  DType compute = DType::kF32;
  std::int64_t depth = 0;
  std::int64_t cols = 0;
  friend auto operator<=>(const SlabShape&, const SlabShape&) = default;
};

struct Slab {
  std::int64_t first = 0;  // column of B
  SlabShape shape;
  memory packed;
};

class PackedSlabs final : public OneDnnWeight {
public:
  explicit PackedSlabs(std::vector<Slab> slabs) : slabs_(std::move(slabs)) {}
  [[nodiscard]] std::int64_t size_bytes() const noexcept override {
    std::int64_t bytes = 0;
    for (const Slab& slab : slabs_) {
      bytes += static_cast<std::int64_t>(slab.packed.get_desc().get_size());
    }
    return bytes;
  }
  [[nodiscard]] const std::vector<Slab>& slabs() const noexcept { return slabs_; }

private:
  std::vector<Slab> slabs_;
};

// A primitive of one height and the memory objects it is called with.
struct Product {
  dnnl::matmul primitive;
  memory source;
  memory result;
  memory scratchpad;
};

// What one worker keeps.
struct Seat {
  std::map<std::pair<SlabShape, std::int64_t>, Product> products;
  Scratch source;
  Scratch result;
  Scratch scratchpad;
};

// B as plain elements of the compute type, and its strides.
struct PlainMatrix {
  std::vector<float> f32;
  std::vector<std::uint16_t> bf16;
  std::int64_t depth = 0;
  std::int64_t cols = 0;
  std::int64_t depth_stride = 0;
  std::int64_t col_stride = 0;

  PlainMatrix(const WeightView& weight, DType compute, OneDnnMatmul::Side side) {
    const std::int64_t count = weight.out_features * weight.in_features;
    if (compute == DType::kBF16) {
      bf16.resize(static_cast<std::size_t>(count));
    } else {
      f32.resize(static_cast<std::size_t>(count));
    }
    for (std::int64_t i = 0; i < count; ++i) {
      const float value = weight_element(weight, i);
      if (compute == DType::kBF16) {
        bf16[static_cast<std::size_t>(i)] = float_to_bf16(value);
      } else {
        f32[static_cast<std::size_t>(i)] = value;
      }
    }
    const bool transposed = side == OneDnnMatmul::Side::kTransposed;
    depth = transposed ? weight.in_features : weight.out_features;
    cols = transposed ? weight.out_features : weight.in_features;
    depth_stride = transposed ? 1 : weight.in_features;
    col_stride = transposed ? weight.in_features : 1;
  }
  // oneDNN takes sources by pointer to non-const, and only reads them.
  [[nodiscard]] void* column(std::int64_t index) {
    const std::int64_t offset = index * col_stride;
    return bf16.empty() ? static_cast<void*>(f32.data() + offset)
                        : static_cast<void*>(bf16.data() + offset);
  }
};

std::int64_t height_for(std::int64_t rows) {
  for (const std::int64_t height : kHeights) {
    if (height >= rows) {
      return height;
    }
  }
  return kHeights.back();
}

void finish_rows(const float* sums, std::int64_t cols, const float* bias, Store store, Matrix y) {
  for (std::int64_t t = 0; t < y.rows; ++t) {
    const float* from = sums + t * cols;
    float* to = y.row(t);
    for (std::int64_t j = 0; j < cols; ++j) {
      const float value = bias == nullptr ? from[j] : from[j] + bias[j];
      to[j] = store == Store::kAdd ? to[j] + value : value;
    }
  }
}

}  // namespace

class OneDnnMatmul::Impl {
public:
  Impl(Workers& workers, const OneDnnPolicy& policy)
      : team_(workers),
        policy_(policy),
        engine_(dnnl::engine::kind::cpu, 0),
        stream_(engine_),
        seats_(static_cast<std::size_t>(workers.size())) {}

  bool self_check(DType compute) {
    constexpr std::int64_t kDepth = 200;
    constexpr std::int64_t kCols = 192;
    const std::vector<float> values = random_values(kCols * kDepth);
    const WeightView weight{values.data(), DType::kF32, kCols, kDepth};
    PlainMatrix plain(weight, compute, Side::kTransposed);
    const SlabShape whole{compute, kDepth, kCols};
    const SlabShape right{compute, kDepth, kCols - kSlabColumns};
    if (!layout_of(whole) || !layout_of(right) || !rows_are_independent(whole)) {
      return false;
    }
    // A column slab must have the bits of the whole.
    constexpr std::int64_t kRows = 5;
    const std::vector<float> x = random_values(kRows * kDepth);
    const ConstMatrix rows{x.data(), kRows, kDepth, kDepth};
    std::vector<float> all(kRows * kCols);
    std::vector<float> part(kRows * right.cols);
    multiply_slab(seats_[0], rows, pack_slab(plain, 0, whole), nullptr, Store::kOverwrite,
                  {all.data(), kRows, kCols, kCols});
    multiply_slab(seats_[0], rows, pack_slab(plain, kSlabColumns, right), nullptr,
                  Store::kOverwrite, {part.data(), kRows, right.cols, right.cols});
    for (std::int64_t t = 0; t < kRows; ++t) {
      if (std::memcmp(all.data() + t * kCols + kSlabColumns, part.data() + t * right.cols,
                      static_cast<std::size_t>(right.cols) * sizeof(float)) != 0) {
        return false;
      }
    }
    return true;
  }

  std::unique_ptr<OneDnnWeight> pack(const WeightView& weight, DType compute, Side side) {
    if (!(compute == DType::kBF16 ? policy_.bf16 : policy_.f32)) {
      return nullptr;
    }
    if (policy_.only_proven &&
        (weight.out_features < kSmallest || weight.in_features < kSmallest)) {
      return nullptr;
    }
    const std::int64_t cols = side == Side::kTransposed ? weight.out_features : weight.in_features;
    const std::int64_t depth = side == Side::kTransposed ? weight.in_features : weight.out_features;
    std::vector<Slab> slabs;
    const std::int64_t blocks = std::max<std::int64_t>(1, cols / kSlabColumns);
    const std::int64_t count = std::min<std::int64_t>(blocks, team_.size());
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t first = blocks * i / count * kSlabColumns;
      const std::int64_t end = i + 1 == count ? cols : blocks * (i + 1) / count * kSlabColumns;
      slabs.push_back({first, {compute, depth, end - first}, {}});
    }
    for (const Slab& slab : slabs) {
      if (!accepted(slab.shape)) {
        return nullptr;
      }
    }
    PlainMatrix plain(weight, compute, side);
    for (Slab& slab : slabs) {
      slab = pack_slab(plain, slab.first, slab.shape);
    }
    return std::make_unique<PackedSlabs>(std::move(slabs));
  }

  void multiply(ConstMatrix x, const PackedSlabs& weight, const float* bias, Store store,
                Matrix y) {
    const std::vector<Slab>& slabs = weight.slabs();
    const std::int64_t cost = slabs.front().shape.cols * x.cols * (x.rows + 6) / 32;
    team_.share(std::ssize(slabs), cost,
                [&](std::int64_t part, std::int64_t begin, std::int64_t end) {
                  for (std::int64_t i = begin; i < end; ++i) {
                    const Slab& slab = slabs[static_cast<std::size_t>(i)];
                    multiply_slab(seats_[static_cast<std::size_t>(part)], x, slab,
                                  bias == nullptr ? nullptr : bias + slab.first, store,
                                  {y.data + slab.first, y.rows, slab.shape.cols, y.stride});
                  }
                });
  }

  Team& team() { return team_; }

private:
  static std::vector<float> random_values(std::int64_t count) {
    RandomStream random(1);
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) {
      value = static_cast<float>(random.uniform() - 0.5);
    }
    return values;
  }

  [[nodiscard]] dnnl::matmul::primitive_desc describe(const SlabShape& shape, std::int64_t height,
                                                      const memory::desc& weights) const {
    const auto type = dnnl_type(shape.compute);
    const memory::desc source({height, shape.depth}, type, memory::format_tag::ab);
    const memory::desc result({height, shape.cols}, memory::data_type::f32, memory::format_tag::ab);
    dnnl::primitive_attr attr;
    attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    return {{source, weights, result}, attr, engine_};
  }

  // The packed layout that all heights of a shape share, if they do.
  const std::optional<memory::desc>& layout_of(const SlabShape& shape) {
    const auto [found, fresh] = layouts_.try_emplace(shape);
    if (fresh) {
      const memory::desc any({shape.depth, shape.cols}, dnnl_type(shape.compute),
                             memory::format_tag::any);
      try {
        const auto chosen = describe(shape, kHeights.back(), any);
        const std::string implementation = chosen.impl_info_str();
        bool shared = true;
        for (const std::int64_t height : kHeights) {
          const auto other = describe(shape, height, chosen.weights_desc());
          shared = shared && other.impl_info_str() == implementation;
        }
        if (shared || !policy_.only_proven) {
          found->second = chosen.weights_desc();
        }
      } catch (const dnnl::error&) {
        found->second.reset();  // some height refuses the layout, or the type is not supported
      }
    }
    return found->second;
  }

  bool accepted(const SlabShape& shape) {
    if (!layout_of(shape)) {
      return false;
    }
    if (!policy_.only_proven) {
      return true;
    }
    const auto [found, fresh] = proven_.try_emplace(shape, false);
    if (fresh) {
      found->second = rows_are_independent(shape);
    }
    return found->second;
  }

  // Computes the same rows at all heights, at both ends of the batch, and compares the bits.
  bool rows_are_independent(const SlabShape& shape) {
    const std::vector<float> values = random_values(shape.depth * shape.cols);
    PlainMatrix plain({values.data(), DType::kF32, shape.cols, shape.depth}, shape.compute,
                      Side::kTransposed);
    const Slab slab = pack_slab(plain, 0, shape);
    const std::int64_t most = kHeights.back();
    const std::vector<float> x = random_values(most * shape.depth);
    const auto row_bytes = static_cast<std::size_t>(shape.cols) * sizeof(float);
    std::vector<float> all(static_cast<std::size_t>(most * shape.cols));
    std::vector<float> some(all.size());
    const ConstMatrix rows{x.data(), most, shape.depth, shape.depth};
    multiply_slab(seats_[0], rows, slab, nullptr, Store::kOverwrite,
                  {all.data(), most, shape.cols, shape.cols});
    for (const std::int64_t count : {1, 2, 3, 5, 8, 16, 31, 64, 128}) {
      for (const std::int64_t first : {std::int64_t{0}, most - count}) {
        multiply_slab(seats_[0], rows.slice_rows(first, count), slab, nullptr, Store::kOverwrite,
                      {some.data(), count, shape.cols, shape.cols});
        if (std::memcmp(some.data(), all.data() + first * shape.cols,
                        static_cast<std::size_t>(count) * row_bytes) != 0) {
          return false;
        }
      }
    }
    return true;
  }

  Slab pack_slab(PlainMatrix& plain, std::int64_t first, const SlabShape& shape) {
    const memory::desc from({shape.depth, shape.cols}, dnnl_type(shape.compute),
                            memory::dims{plain.depth_stride, plain.col_stride});
    memory source(from, engine_, plain.column(first));
    Slab slab{first, shape, memory(*layout_of(shape), engine_)};
    dnnl::reorder(source, slab.packed).execute(stream_, source, slab.packed);
    stream_.wait();
    return slab;
  }

  Product& product_for(Seat& seat, const SlabShape& shape, std::int64_t height) {
    const auto [found, fresh] = seat.products.try_emplace({shape, height});
    Product& product = found->second;
    if (fresh) {
      const auto description = describe(shape, height, *layout_of_const(shape));
      product.primitive = dnnl::matmul(description);
      product.source = memory(description.src_desc(), engine_, nullptr);
      product.result = memory(description.dst_desc(), engine_, nullptr);
      product.scratchpad = memory(description.scratchpad_desc(), engine_, nullptr);
    }
    return product;
  }

  // Workers read the layouts at the same time; all were found while packing.
  [[nodiscard]] const std::optional<memory::desc>& layout_of_const(const SlabShape& shape) const {
    return layouts_.at(shape);
  }

  // Returns `rows` of x as oneDNN reads them: dense, in the compute type, padded to `height`.
  static void* source_rows(Seat& seat, ConstMatrix x, DType compute, std::int64_t height) {
    if (compute == DType::kF32 && x.rows == height && x.stride == x.cols) {
      return const_cast<float*>(x.data);  // only read
    }
    float* dense = seat.source.floats(height * x.cols);
    if (compute == DType::kF32) {
      for (std::int64_t t = 0; t < x.rows; ++t) {
        std::copy_n(x.row(t), x.cols, dense + t * x.cols);
      }
      std::fill(dense + x.rows * x.cols, dense + height * x.cols, 0.0F);
      return dense;
    }
    auto* rounded = reinterpret_cast<std::uint16_t*>(dense);
    for (std::int64_t t = 0; t < x.rows; ++t) {
      for (std::int64_t k = 0; k < x.cols; ++k) {
        rounded[t * x.cols + k] = float_to_bf16(x.row(t)[k]);
      }
    }
    std::fill(rounded + x.rows * x.cols, rounded + height * x.cols, std::uint16_t{0});
    return rounded;
  }

  void multiply_slab(Seat& seat, ConstMatrix x, const Slab& slab, const float* bias, Store store,
                     Matrix y) {
    dnnl::stream stream(engine_);
    for (std::int64_t first = 0; first < x.rows;) {
      // The tallest product that is full, or one that holds all the rest.
      const std::int64_t height = height_for(x.rows - first);
      const std::int64_t rows = std::min(height, x.rows - first);
      Product& product = product_for(seat, slab.shape, height);
      const std::int64_t pad =
          static_cast<std::int64_t>(product.scratchpad.get_desc().get_size() / sizeof(float)) + 1;
      product.source.set_data_handle(
          source_rows(seat, x.slice_rows(first, rows), slab.shape.compute, height));
      float* sums = seat.result.floats(height * slab.shape.cols);
      product.result.set_data_handle(sums);
      product.scratchpad.set_data_handle(seat.scratchpad.floats(pad));
      product.primitive.execute(stream, {{DNNL_ARG_SRC, product.source},
                                         {DNNL_ARG_WEIGHTS, slab.packed},
                                         {DNNL_ARG_DST, product.result},
                                         {DNNL_ARG_SCRATCHPAD, product.scratchpad}});
      stream.wait();
      finish_rows(sums, slab.shape.cols, bias, store, y.slice_rows(first, rows));
      first += rows;
    }
  }

  Team team_;
  OneDnnPolicy policy_;
  dnnl::engine engine_;
  dnnl::stream stream_;
  std::vector<Seat> seats_;
  std::map<SlabShape, std::optional<memory::desc>> layouts_;
  std::map<SlabShape, bool> proven_;
};

namespace {

// Runs `work` on the calling thread, as a member of the team.
template <class Work>
void on_caller(Team& team, const Work& work) {
  team.share(1, 1, [&](std::int64_t, std::int64_t, std::int64_t) { work(); });
}

}  // namespace

OneDnnMatmul::OneDnnMatmul(Workers& workers, const OneDnnPolicy& policy) {
  try {
    impl_ = std::make_unique<Impl>(workers, policy);
  } catch (const dnnl::error&) {
    impl_ = nullptr;  // no engine: every weight is left to the built-in kernels
  }
}

OneDnnMatmul::~OneDnnMatmul() = default;

std::string OneDnnMatmul::version() {
  const dnnl_version_t* version = dnnl_version();
  return "oneDNN " + std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
         std::to_string(version->patch);
}

bool OneDnnMatmul::self_check(DType compute) {
  bool passed = false;
  if (impl_ != nullptr) {
    on_caller(impl_->team(), [&] {
      try {
        passed = impl_->self_check(compute);
      } catch (const dnnl::error&) {
        passed = false;
      }
    });
  }
  return passed;
}

std::unique_ptr<OneDnnWeight> OneDnnMatmul::pack(const WeightView& weight, DType compute,
                                                 Side side) {
  std::unique_ptr<OneDnnWeight> packed;
  if (impl_ != nullptr) {
    on_caller(impl_->team(), [&] {
      try {
        packed = impl_->pack(weight, compute, side);
      } catch (const dnnl::error&) {
        packed = nullptr;
      }
    });
  }
  return packed;
}

void OneDnnMatmul::multiply(ConstMatrix x, const OneDnnWeight& weight, const float* bias,
                            Store store, Matrix y) {
  const auto* slabs = dynamic_cast<const PackedSlabs*>(&weight);
  TIDEMILL_CHECK(slabs != nullptr && impl_ != nullptr) << "a weight of another backend";
  impl_->multiply(x, *slabs, bias, store, y);
}

}  // namespace tidemill::engines::cpu
