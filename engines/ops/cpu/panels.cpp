// SPDX-License-Identifier: Apache-2.0
#include "engines/ops/cpu/panels.hpp"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/tensor/block_int8.hpp"
#include "base/tensor/block_nf4.hpp"
#include "engines/ops/cpu/team.hpp"
#include "engines/ops/weight_elements.hpp"

namespace tidemill::engines::cpu {
namespace {

// Copies `count` elements of the flat weight from `first` on, converted to the type of the panels.
template <class Element>
void copy_elements(const WeightView& weight, std::int64_t first, std::int64_t count, Element* to) {
  for (std::int64_t i = 0; i < count; ++i) {
    store_element(weight_element(weight, first + i), to + i);
  }
}

// Returns the rows of panel `panel` in the type of the panels: in place if the weight has that
// type, otherwise converted in `copy`, which has room for a panel of floats.
const void* rows_of(const WeightView& weight, const PanelShape& shape, std::int64_t panel,
                    float* copy) {
  const std::int64_t row = panel * kPanel;
  const std::int64_t first = row * weight.in_features;
  if (weight.dtype == shape.dtype) {
    return static_cast<const std::byte*>(weight.data) +
           first * static_cast<std::int64_t>(dtype_bytes(weight.dtype));
  }
  const std::int64_t count = std::min(kPanel, weight.out_features - row) * weight.in_features;
  if (shape.dtype == DType::kBF16) {
    copy_elements(weight, first, count, reinterpret_cast<std::uint16_t*>(copy));
  } else {
    copy_elements(weight, first, count, copy);
  }
  return copy;
}

// Returns block `index` of the flat weight, quantizing its elements if necessary.
BlockI8 block_of(const WeightView& weight, std::int64_t index) {
  if (weight.dtype == DType::kBlockI8) {
    return static_cast<const BlockI8*>(weight.data)[index];
  }
  constexpr std::int64_t kElements = BlockI8::kElements;
  std::array<float, BlockI8::kElements> values{};
  for (std::int64_t i = 0; i < kElements; ++i) {
    values[static_cast<std::size_t>(i)] = weight_element(weight, index * kElements + i);
  }
  return quantize_block(values);
}

// Returns the position of value `i` of a block of output `lane` among the block's values: groups of
// four features, and in each group output after output.
constexpr std::int64_t block_value_at(std::int64_t i, std::int64_t lane) {
  constexpr std::int64_t kGroup = 4;
  return (i / kGroup * kPanel + lane) * kGroup + i % kGroup;
}

// Packs one panel of block int8. Outputs past the last one are 0.
void pack_blocks(const WeightView& weight, const PanelShape& shape, std::int64_t panel,
                 std::byte* to) {
  constexpr std::int64_t kElements = BlockI8::kElements;
  const std::int64_t blocks = shape.depth / kElements;
  for (std::int64_t lane = 0; lane < kPanel; ++lane) {
    const std::int64_t row = panel * kPanel + lane;
    for (std::int64_t block = 0; block < blocks; ++block) {
      const BlockI8 from =
          row < weight.out_features ? block_of(weight, row * blocks + block) : BlockI8{};
      auto* values = reinterpret_cast<std::uint8_t*>(to + int8_values_at(block));
      reinterpret_cast<std::uint16_t*>(to + int8_scales_at(block))[lane] = from.scale;
      for (std::int64_t i = 0; i < kElements; ++i) {
        values[block_value_at(i, lane)] =
            static_cast<std::uint8_t>(from.values[static_cast<std::size_t>(i)] + 128);
      }
    }
  }
}

// Packs one panel of NF4: for each pair of features a byte per output, then the codes of the
// blocks.
void pack_nf4(const Nf4Parts& parts, const PanelShape& shape, std::int64_t panel, std::byte* to) {
  constexpr auto kElements = static_cast<std::int64_t>(kNf4BlockElements);
  const std::int64_t pairs = shape.depth / 2;
  const std::int64_t blocks = shape.depth / kElements;
  auto* codes = reinterpret_cast<std::uint8_t*>(to);
  for (std::int64_t lane = 0; lane < kPanel; ++lane) {
    const std::int64_t row = panel * kPanel + lane;
    const bool exists = row < shape.cols;
    for (std::int64_t pair = 0; pair < pairs; ++pair) {
      codes[pair * kPanel + lane] = exists
                                        ? parts.codes[static_cast<std::size_t>(row * pairs + pair)]
                                        : static_cast<std::uint8_t>(kNf4Zero << 4U | kNf4Zero);
    }
    for (std::int64_t block = 0; block < blocks; ++block) {
      codes[(pairs + block) * kPanel + lane] =
          exists ? parts.block_codes[static_cast<std::size_t>(row * blocks + block)] : 0;
    }
  }
}

// Reads the rows of at most `max_panels` panels from the weight's file, as many panels at a time as
// stay in the second-level cache until they are packed.
class FileRows {
public:
  FileRows(const WeightView& weight, std::int64_t max_panels)
      : weight_(weight),
        row_bytes_(weight.in_features /
                   static_cast<std::int64_t>(dtype_block_elements(weight.dtype)) *
                   static_cast<std::int64_t>(dtype_block_bytes(weight.dtype))) {
    constexpr std::int64_t kPieceBytes = std::int64_t{256} * 1024;
    const std::int64_t panel_bytes = std::max<std::int64_t>(1, kPanel * row_bytes_);
    panels_ = std::max<std::int64_t>(1, std::min(kPieceBytes / panel_bytes, max_panels));
  }

  // Returns how many panels are read at a time.
  [[nodiscard]] std::int64_t panels() const noexcept { return panels_; }
  // Returns the size of the buffer that `read` needs.
  [[nodiscard]] std::int64_t bytes() const noexcept { return panels_ * kPanel * row_bytes_; }

  // Reads the rows of panels [first, end) into `buffer`. Returns a view of them as a weight.
  [[nodiscard]] Result<WeightView> read(std::int64_t first, std::int64_t end,
                                        std::byte* buffer) const {
    WeightView rows = weight_;
    rows.data = buffer;
    rows.out_features = std::min(end * kPanel, weight_.out_features) - first * kPanel;
    rows.file = nullptr;
    TIDEMILL_RETURN_IF_ERROR(
        weight_.file->copy_to(static_cast<std::size_t>(first * kPanel * row_bytes_),
                              {buffer, static_cast<std::size_t>(rows.out_features * row_bytes_)}));
    return rows;
  }

private:
  const WeightView& weight_;
  std::int64_t row_bytes_;
  std::int64_t panels_;
};

// Returns whether packing reads the weight only once, row by row. A weight that is quantized was
// read before, to check that quantization is possible, and NF4 is not stored row by row.
bool packs_in_one_pass(const WeightView& weight, DType compute) {
  return weight.dtype != DType::kNf4 &&
         (weight.dtype == compute || compute == DType::kF32 || compute == DType::kBF16);
}

}  // namespace

// Packs one weight.
class PanelWeight::Packer {
public:
  Packer(const WeightView& weight, const PanelShape& shape, const KernelTable& kernels,
         std::byte* out)
      : weight_(weight), shape_(shape), kernels_(kernels), out_(out) {
    if (shape.dtype != DType::kNf4) {
      return;
    }
    quantized_ = nf4_weight(weight);
    const Nf4Parts parts = nf4_parts(quantized_.bytes().data(), shape.cols * shape.depth);
    auto* shared = reinterpret_cast<float*>(out + shape.num_panels() * shape.panel_bytes());
    std::copy(parts.group_scales.begin(), parts.group_scales.end(), shared);
    shared[parts.group_scales.size()] = parts.offset;
  }

  // Packs panels [begin, end). Returns true if it found all elements to be finite.
  Result<bool> pack(std::int64_t begin, std::int64_t end, Scratch& scratch) const {
    const bool converts = has_elements() && weight_.dtype != shape_.dtype;
    const std::int64_t copied = converts ? kPanel * shape_.depth * std::int64_t{sizeof(float)} : 0;
    if (weight_.file == nullptr || !packs_in_one_pass(weight_, shape_.dtype)) {
      return pack_rows(weight_, 0, begin, end, reinterpret_cast<float*>(scratch.bytes(copied)));
    }
    const FileRows file(weight_, end - begin);
    auto* copy = reinterpret_cast<float*>(scratch.bytes(copied + file.bytes()));
    std::byte* buffer = reinterpret_cast<std::byte*>(copy) + copied;
    bool finite = true;
    for (std::int64_t first = begin; first < end; first += file.panels()) {
      const std::int64_t last = std::min(first + file.panels(), end);
      TIDEMILL_ASSIGN_OR_RETURN(const WeightView rows, file.read(first, last, buffer));
      finite = pack_rows(rows, first, first, last, copy) && finite;
    }
    return finite;
  }

private:
  // Returns whether the panels hold elements, not blocks.
  [[nodiscard]] bool has_elements() const noexcept {
    return shape_.dtype == DType::kF32 || shape_.dtype == DType::kBF16;
  }

  // Packs panels [begin, end) from `rows`, which holds the rows of the weight from panel `origin`
  // on.
  bool pack_rows(const WeightView& rows, std::int64_t origin, std::int64_t begin, std::int64_t end,
                 float* copy) const {
    const auto pack = shape_.dtype == DType::kBF16 ? kernels_.pack_bf16 : kernels_.pack_f32;
    bool finite = has_elements();
    for (std::int64_t panel = begin; panel < end; ++panel) {
      std::byte* to = out_ + panel * shape_.panel_bytes();
      if (shape_.dtype == DType::kBlockI8) {
        pack_blocks(rows, shape_, panel - origin, to);
        continue;
      }
      if (shape_.dtype == DType::kNf4) {
        pack_nf4(nf4_parts(quantized_.bytes().data(), shape_.cols * shape_.depth), shape_, panel,
                 to);
        continue;
      }
      finite = pack({.rows = rows_of(rows, shape_, panel - origin, copy),
                     .row_stride = shape_.depth,
                     .num_rows = std::min(kPanel, shape_.cols - panel * kPanel),
                     .depth = shape_.depth,
                     .panel = to}) &&
               finite;
    }
    return finite;
  }

  const WeightView& weight_;
  const PanelShape& shape_;
  const KernelTable& kernels_;
  std::byte* out_;
  Buffer quantized_;  // for kNf4, the weight in NF4
};

Result<std::unique_ptr<PanelWeight>> PanelWeight::create(const WeightView& weight, WeightRows rows,
                                                         DType compute, const KernelTable& kernels,
                                                         WeightBytes memory, Team& team) {
  const PanelShape shape{weight.in_features, weight.out_features, compute};
  std::unique_ptr<PanelWeight> made(new PanelWeight(shape, std::move(memory)));
  const Packer packer(weight, shape, kernels, made->bytes_.data());
  std::vector<Result<bool>> finite(static_cast<std::size_t>(team.size()), true);
  const std::int64_t first = rows.first / kPanel;
  team.parallel_for(panels_for(rows.count), shape.depth * kPanel / 2,
                    [&](std::int64_t part, std::int64_t begin, std::int64_t end) {
                      finite[static_cast<std::size_t>(part)] =
                          packer.pack(first + begin, first + end, team.scratch(part));
                    });
  made->seen_finite_ = true;
  for (const Result<bool>& part : finite) {
    TIDEMILL_RETURN_IF_ERROR(part.status());
    made->seen_finite_ = made->seen_finite_ && part.value();
  }
  return made;
}

void PanelWeight::read_row(std::int64_t row, float* out) const noexcept {
  constexpr std::int64_t kElements = BlockI8::kElements;
  const std::byte* const panel = data() + row / kPanel * shape_.panel_bytes();
  const std::int64_t lane = row % kPanel;
  for (std::int64_t first = 0; first < shape_.depth; first += kElements) {
    const std::int64_t block = first / kElements;
    const auto* values = reinterpret_cast<const std::uint8_t*>(panel + int8_values_at(block));
    const float scale =
        f16_to_float(reinterpret_cast<const std::uint16_t*>(panel + int8_scales_at(block))[lane]);
    for (std::int64_t i = 0; i < kElements; ++i) {
      out[first + i] = scale * static_cast<float>(values[block_value_at(i, lane)] - 128);
    }
  }
}

}  // namespace tidemill::engines::cpu
