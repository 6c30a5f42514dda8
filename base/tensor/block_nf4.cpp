// SPDX-License-Identifier: Apache-2.0
#include "base/tensor/block_nf4.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "base/tensor/float_tensor.hpp"

namespace tidemill {
namespace {

constexpr std::size_t kBlock = kNf4BlockElements;
constexpr float kMinScale = 1e-38F;

std::array<float, 256> make_scale_values() {
  std::array<float, 256> values{};
  std::size_t count = 0;
  const auto both_signs = [&](float value) {
    values.at(count++) = value;
    values.at(count++) = -value;
  };
  constexpr int kDecades = 7;
  for (int decade = 0; decade < kDecades; ++decade) {
    const auto top = static_cast<float>(std::pow(10.0, decade - (kDecades - 1)));
    const int parts = 1 << decade;
    const float step = (1.0F - 0.1F) / static_cast<float>(parts);
    // Computed from the nearer end with one rounding. This gives the bits of torch.linspace, with
    // which the published maps were made.
    const auto bound = [&](int i) {
      return 2 * i < parts + 1 ? std::fma(step, static_cast<float>(i), 0.1F)
                               : std::fma(-step, static_cast<float>(parts - i), 1.0F);
    };
    for (int i = 0; i < parts; ++i) {
      both_signs(top * ((bound(i) + bound(i + 1)) / 2.0F));
    }
  }
  values.at(count++) = 0.0F;
  values.at(count++) = 1.0F;
  TIDEMILL_CHECK(count == values.size()) << count;
  std::sort(values.begin(), values.end());
  return values;
}

// The midpoints between neighboring values. The code of x is the number of midpoints below x.
std::array<float, 15> make_bounds() {
  std::array<float, 15> bounds{};
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    bounds.at(i) = (kNf4Values.at(i) + kNf4Values.at(i + 1)) / 2.0F;
  }
  return bounds;
}

float largest_of(std::span<const float> x) {
  float peak = 0.0F;
  for (const float value : x) {
    peak = std::max(peak, std::abs(value));
  }
  return peak;
}

// Encodes one block of 64 elements.
void code_block(std::span<const float> x, float scale, std::uint8_t* to) {
  static const std::array<float, 15> bounds = make_bounds();
  const float inverse = 1.0F / std::max(scale, kMinScale);
  std::array<std::uint8_t, kBlock> codes{};
  std::array<float, kBlock> scaled{};
  for (std::size_t i = 0; i < kBlock; ++i) {
    scaled[i] = std::clamp(x[i] * inverse, -1.0F, 1.0F);
  }
  for (const float bound : bounds) {
    for (std::size_t i = 0; i < kBlock; ++i) {
      codes[i] = static_cast<std::uint8_t>(codes[i] + (scaled[i] > bound ? 1 : 0));
    }
  }
  for (std::size_t i = 0; i < kBlock; i += 2) {
    to[i / 2] = static_cast<std::uint8_t>((codes[i] << 4U) | codes[i + 1]);
  }
}

// Returns the code of the value that is nearest to `x`; halfway between two values, the lower one.
std::uint8_t scale_code(float x) {
  const auto values = nf4_scale_values();
  const auto above = std::lower_bound(values.begin(), values.end(), x);
  if (above == values.begin()) {
    return 0;
  }
  if (above == values.end()) {
    return 255;
  }
  const auto below = std::prev(above);
  const auto nearest = *above - x < x - *below ? above : below;
  return static_cast<std::uint8_t>(nearest - values.begin());
}

// The parts of a tensor that is being written.
struct WritableParts {
  std::span<float> group_scales;
  float* offset;
  std::span<std::uint8_t> codes;
  std::span<std::uint8_t> block_codes;
};

std::size_t num_groups(std::size_t blocks) {
  return (blocks + kNf4GroupBlocks - 1) / kNf4GroupBlocks;
}

// A tensor's memory, aligned for floats.
class Storage {
public:
  explicit Storage(std::size_t blocks)
      : blocks_(blocks),
        bytes_(blocks * (kBlock / 2 + 1) + static_cast<std::size_t>(nf4_shared_bytes(blocks))),
        memory_(std::make_shared<std::vector<float>>((bytes_ + 3) / 4)) {}

  WritableParts parts() {
    float* floats = memory_->data();
    auto* codes = reinterpret_cast<std::uint8_t*>(floats + num_groups(blocks_) + 1);
    return {{floats, num_groups(blocks_)},
            floats + num_groups(blocks_),
            {codes, blocks_ * (kBlock / 2)},
            {codes + blocks_ * (kBlock / 2), blocks_}};
  }

  Buffer buffer() const {
    const auto bytes = std::as_bytes(std::span<const float>(*memory_)).first(bytes_);
    return Buffer::wrap(memory_, bytes, DType::kNf4);
  }

private:
  std::size_t blocks_;
  std::size_t bytes_;
  std::shared_ptr<std::vector<float>> memory_;
};

void quantize_scales(std::span<const float> scales, const WritableParts& to) {
  double sum = 0.0;
  for (const float scale : scales) {
    sum += double{scale};
  }
  const auto offset =
      static_cast<float>(scales.empty() ? 0.0 : sum / static_cast<double>(scales.size()));
  *to.offset = offset;
  for (std::size_t group = 0; group < to.group_scales.size(); ++group) {
    const std::size_t first = group * kNf4GroupBlocks;
    const auto members = scales.subspan(first, std::min(kNf4GroupBlocks, scales.size() - first));
    float peak = 0.0F;
    for (const float scale : members) {
      peak = std::max(peak, std::abs(scale - offset));
    }
    to.group_scales[group] = peak;
    for (std::size_t i = 0; i < members.size(); ++i) {
      to.block_codes[first + i] = peak > 0.0F ? scale_code((members[i] - offset) / peak) : 0;
    }
  }
}

std::string count_text(const char* what, std::size_t found, std::uint64_t expected) {
  return std::to_string(found) + what + std::to_string(expected);
}

}  // namespace

std::span<const float, 256> nf4_scale_values() noexcept {
  static const std::array<float, 256> values = make_scale_values();
  return values;
}

Nf4Parts nf4_parts(const void* data, std::int64_t num_elements) noexcept {
  const std::size_t blocks = static_cast<std::size_t>(num_elements) / kBlock;
  const auto* floats = static_cast<const float*>(data);
  const auto* codes = reinterpret_cast<const std::uint8_t*>(floats + num_groups(blocks) + 1);
  return {{floats, num_groups(blocks)},
          floats[num_groups(blocks)],
          {codes, blocks * (kBlock / 2)},
          {codes + blocks * (kBlock / 2), blocks}};
}

Nf4Parts nf4_parts(const Tensor& tensor) noexcept {
  TIDEMILL_CHECK(tensor.dtype == DType::kNf4) << dtype_name(tensor.dtype);
  TIDEMILL_CHECK(tensor.data.size_bytes() == tensor_bytes(tensor.dtype, tensor.shape))
      << tensor.data.size_bytes();
  return nf4_parts(tensor.data.bytes().data(), tensor.num_elements());
}

void widen_nf4(const Nf4Parts& parts, std::int64_t first, std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); i += kBlock) {
    const std::size_t block = static_cast<std::size_t>(first) / kBlock + i / kBlock;
    const float scale = nf4_block_scale(parts, static_cast<std::int64_t>(block));
    const auto codes = parts.codes.subspan(block * (kBlock / 2), kBlock / 2);
    for (std::size_t pair = 0; pair < codes.size(); ++pair) {
      const unsigned both = codes[pair];
      out[i + 2 * pair] = kNf4Values[both >> 4U] * scale;
      out[i + 2 * pair + 1] = kNf4Values[both & 15U] * scale;
    }
  }
}

Buffer quantize_nf4(std::int64_t num_elements, const ReadElements& read) {
  TIDEMILL_CHECK(num_elements % static_cast<std::int64_t>(kBlock) == 0) << num_elements;
  const std::size_t blocks = static_cast<std::size_t>(num_elements) / kBlock;
  Storage storage(blocks);
  const WritableParts parts = storage.parts();
  std::vector<float> scales(blocks);
  std::vector<float> piece(kBlock * kNf4GroupBlocks);
  for (std::size_t first = 0; first < blocks; first += kNf4GroupBlocks) {
    const std::size_t count = std::min(kNf4GroupBlocks, blocks - first);
    read(static_cast<std::int64_t>(first * kBlock), std::span(piece).first(count * kBlock));
    for (std::size_t i = 0; i < count; ++i) {
      const auto x = std::span(piece).subspan(i * kBlock, kBlock);
      scales[first + i] = largest_of(x);
      code_block(x, scales[first + i], parts.codes.data() + (first + i) * (kBlock / 2));
    }
  }
  quantize_scales(scales, parts);
  return storage.buffer();
}

Result<Tensor> quantize_nf4(const Tensor& tensor, const std::string& name) {
  const std::string location = "tensor " + name;
  if (!is_float_type(tensor.dtype)) {
    return invalid_argument(location + ": type " + std::string(dtype_name(tensor.dtype)) +
                            " cannot be quantized; only F32, F16 and BF16 can");
  }
  if (!tensor_bytes(DType::kNf4, tensor.shape).has_value()) {
    return invalid_argument(location + ": rows of " +
                            std::to_string(tensor.shape.empty() ? 1 : tensor.shape.back()) +
                            " elements cannot be cut into blocks of 64");
  }
  TIDEMILL_RETURN_IF_ERROR(check_finite(tensor).with_context(location));
  std::vector<float> values(static_cast<std::size_t>(tensor.num_elements()));
  widen_floats(tensor, values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::abs(values[i]) > kNf4MaxMagnitude) {
      return invalid_argument(location + ": element " + std::to_string(i) +
                              " is too large for NF4; the limit is 1e38");
    }
  }
  Buffer data = quantize_nf4(tensor.num_elements(), [&](std::int64_t first, std::span<float> out) {
    std::copy_n(values.begin() + first, out.size(), out.begin());
  });
  return Tensor{DType::kNf4, tensor.shape, std::move(data)};
}

Result<Tensor> make_nf4_tensor(const Nf4Parts& parts, std::vector<std::int64_t> shape,
                               const std::string& name) {
  const std::string location = "tensor " + name + ": ";
  const bool negative = std::any_of(shape.begin(), shape.end(), [](auto e) { return e < 0; });
  const auto bytes = negative ? std::nullopt : tensor_bytes(DType::kNf4, shape);
  if (!bytes.has_value()) {
    return corrupt_data(location + "its rows cannot be cut into blocks of 64");
  }
  Tensor tensor{DType::kNf4, std::move(shape), {}};
  const auto elements = static_cast<std::uint64_t>(tensor.num_elements());
  const std::uint64_t blocks = elements / kBlock;
  if (parts.codes.size() != elements / 2) {
    return corrupt_data(location + count_text(" bytes of codes; its shape needs ",
                                              parts.codes.size(), elements / 2));
  }
  if (parts.block_codes.size() != blocks) {
    return corrupt_data(location +
                        count_text(" blocks; its shape needs ", parts.block_codes.size(), blocks));
  }
  if (parts.group_scales.size() != num_groups(static_cast<std::size_t>(blocks))) {
    return corrupt_data(location + count_text(" groups of blocks; its shape needs ",
                                              parts.group_scales.size(),
                                              num_groups(static_cast<std::size_t>(blocks))));
  }
  Storage storage(static_cast<std::size_t>(blocks));
  const WritableParts to = storage.parts();
  std::copy(parts.group_scales.begin(), parts.group_scales.end(), to.group_scales.begin());
  *to.offset = parts.offset;
  std::copy(parts.codes.begin(), parts.codes.end(), to.codes.begin());
  std::copy(parts.block_codes.begin(), parts.block_codes.end(), to.block_codes.begin());
  tensor.data = storage.buffer();
  if (const Status finite = check_finite(tensor); !finite.ok()) {
    return corrupt_data(location + finite.message());
  }
  if (!std::isfinite(parts.offset)) {
    return corrupt_data(location + "the offset of its scales is not finite");
  }
  return tensor;
}

}  // namespace tidemill
