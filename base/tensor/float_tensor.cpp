// SPDX-License-Identifier: Apache-2.0
#include "base/tensor/float_tensor.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "base/buffer_allocator.hpp"
#include "base/check.hpp"
#include "base/result.hpp"
#include "base/tensor/block_int8.hpp"
#include "base/tensor/block_nf4.hpp"

namespace tidemill {
namespace {

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

// Returns the index of element `flat` of a tensor, such as "[3, 17]".
std::string index_text(std::span<const std::int64_t> shape, std::int64_t flat) {
  std::vector<std::int64_t> index(shape.size());
  for (std::size_t i = shape.size(); i-- > 0;) {
    index[i] = flat % shape[i];
    flat /= shape[i];
  }
  return shape_text(index);
}

// Returns the first word in which all bits of `exponent` are set. Works in pieces, without a branch
// per word, so that the loop vectorizes.
template <class Word>
std::optional<std::size_t> find_exponent(std::span<const Word> words, Word exponent) {
  constexpr std::size_t kPiece = 4096;
  for (std::size_t begin = 0; begin < words.size(); begin += kPiece) {
    const auto piece = words.subspan(begin, std::min(kPiece, words.size() - begin));
    Word found = 0;
    for (const Word word : piece) {
      found |= static_cast<Word>((word & exponent) == exponent ? 1 : 0);
    }
    if (found != 0) {
      const auto at = std::ranges::find_if(
          piece, [exponent](Word word) { return (word & exponent) == exponent; });
      return begin + static_cast<std::size_t>(at - piece.begin());
    }
  }
  return std::nullopt;
}

// An element that is NaN or infinite.
struct NotFinite {
  std::size_t element;
  bool nan;
};

template <class Word>
std::optional<NotFinite> find_not_finite(std::span<const Word> words, Word exponent,
                                         Word mantissa) {
  const auto at = find_exponent(words, exponent);
  return at ? std::optional(NotFinite{*at, (words[*at] & mantissa) != 0}) : std::nullopt;
}

constexpr std::uint16_t kF16Exponent = 0x7C00;
constexpr std::uint16_t kF16Mantissa = 0x03FF;

std::optional<NotFinite> find_not_finite(std::span<const BlockI8> blocks) {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if ((blocks[i].scale & kF16Exponent) == kF16Exponent) {
      return NotFinite{i * BlockI8::kElements, (blocks[i].scale & kF16Mantissa) != 0};
    }
  }
  return std::nullopt;
}

std::optional<NotFinite> find_not_finite(const Nf4Parts& parts) {
  for (std::size_t block = 0; block < parts.block_codes.size(); ++block) {
    const float scale = nf4_block_scale(parts, static_cast<std::int64_t>(block));
    if (!std::isfinite(scale)) {
      return NotFinite{block * kNf4BlockElements, std::isnan(scale)};
    }
  }
  return std::nullopt;
}

template <class T>
std::span<const T> elements_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
}

// Searches whole elements, or blocks, of any type but kNf4. Requires them to be aligned.
std::optional<NotFinite> find_not_finite(DType dtype, std::span<const std::byte> bytes) {
  switch (dtype) {
    case DType::kF32:
      return find_not_finite<std::uint32_t>(elements_of<std::uint32_t>(bytes), 0x7F800000U,
                                            0x007FFFFFU);
    case DType::kF16:
      return find_not_finite<std::uint16_t>(elements_of<std::uint16_t>(bytes), kF16Exponent,
                                            kF16Mantissa);
    case DType::kBF16:
      return find_not_finite<std::uint16_t>(elements_of<std::uint16_t>(bytes), 0x7F80, 0x007F);
    default: return find_not_finite(elements_of<BlockI8>(bytes));
  }
}

// The same for a tensor of a mapped file, read in pieces that stay in the cache.
Result<std::optional<NotFinite>> find_not_finite_in_file(const Tensor& tensor) {
  constexpr std::size_t kPieceBytes = std::size_t{64} * 1024;
  const std::size_t block = dtype_block_bytes(tensor.dtype);
  const std::size_t size = tensor.data.size_bytes();
  std::vector<std::byte> scratch(std::min(size, kPieceBytes / block * block));
  for (std::size_t begin = 0; begin < size; begin += scratch.size()) {
    const std::span<std::byte> piece(scratch.data(), std::min(scratch.size(), size - begin));
    TIDEMILL_RETURN_IF_ERROR(tensor.data.copy_to(begin, piece));
    if (auto found = find_not_finite(tensor.dtype, piece)) {
      found->element += begin / block * dtype_block_elements(tensor.dtype);
      return found;
    }
  }
  return std::optional<NotFinite>();
}

Result<std::optional<NotFinite>> find_not_finite(const Tensor& tensor) {
  if (tensor.dtype == DType::kNf4) {
    return find_not_finite(nf4_parts(tensor));
  }
  if (tensor.data.backing() == Backing::kFile) {
    return find_not_finite_in_file(tensor);
  }
  return find_not_finite(tensor.dtype, tensor.data.bytes());
}

void widen_blocks(std::span<const BlockI8> blocks, std::span<float> out) {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const float scale = f16_to_float(blocks[i].scale);
    for (std::size_t j = 0; j < BlockI8::kElements; ++j) {
      out[i * BlockI8::kElements + j] = scale * static_cast<float>(blocks[i].values[j]);
    }
  }
}

}  // namespace

bool is_float_type(DType dtype) noexcept {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

bool is_weight_type(DType dtype) noexcept {
  return is_float_type(dtype) || dtype == DType::kBlockI8 || dtype == DType::kNf4;
}

Status check_float_tensor(const TensorMap& tensors, const std::string& name,
                          std::span<const std::int64_t> shape) {
  const auto found = tensors.find(name);
  if (found == tensors.end()) {
    return invalid_argument("tensor " + name + " is missing");
  }
  const Tensor& tensor = found->second;
  if (!std::ranges::equal(tensor.shape, shape)) {
    return invalid_argument("tensor " + name + " has shape " + shape_text(tensor.shape) +
                            ", expected " + shape_text(shape));
  }
  if (!is_weight_type(tensor.dtype)) {
    return invalid_argument("tensor " + name + " has type " +
                            std::string(dtype_name(tensor.dtype)) +
                            ", expected F32, F16, BF16 or Q8_0");
  }
  return {};
}

Status check_finite(const Tensor& tensor) {
  TIDEMILL_CHECK(is_weight_type(tensor.dtype)) << dtype_name(tensor.dtype);
  TIDEMILL_ASSIGN_OR_RETURN(const std::optional<NotFinite> found, find_not_finite(tensor));
  if (!found.has_value()) {
    return {};
  }
  return invalid_argument("element " +
                          index_text(tensor.shape, static_cast<std::int64_t>(found->element)) +
                          (found->nan ? " is NaN" : " is infinite"));
}

void widen_floats(const Tensor& tensor, std::span<float> out) {
  TIDEMILL_CHECK(is_weight_type(tensor.dtype)) << dtype_name(tensor.dtype);
  TIDEMILL_CHECK(tensor.data.size_bytes() == tensor_bytes(tensor.dtype, tensor.shape) &&
                 tensor.num_elements() == std::ssize(out))
      << out.size();
  if (tensor.dtype == DType::kNf4) {
    widen_nf4(nf4_parts(tensor), 0, out);
    return;
  }
  if (tensor.dtype == DType::kBlockI8) {
    widen_blocks(tensor.data.as<BlockI8>(), out);
    return;
  }
  if (tensor.dtype == DType::kF32) {
    std::ranges::copy(tensor.data.as<float>(), out.begin());
    return;
  }
  const auto widen = tensor.dtype == DType::kF16 ? f16_to_float : bf16_to_float;
  std::ranges::transform(tensor.data.as<std::uint16_t>(), out.begin(), widen);
}

std::vector<float> float_values(const Tensor& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.num_elements()));
  widen_floats(tensor, values);
  return values;
}

void round_floats(std::span<const float> values, DType dtype, std::span<std::byte> out) {
  TIDEMILL_CHECK(is_float_type(dtype) && out.size() == values.size() * dtype_bytes(dtype))
      << dtype_name(dtype) << ' ' << out.size();
  if (dtype == DType::kF32) {
    std::ranges::copy(std::as_bytes(values), out.begin());
    return;
  }
  const auto round = dtype == DType::kF16 ? float_to_f16 : float_to_bf16;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint16_t bits = round(values[i]);
    std::memcpy(out.data() + i * sizeof(bits), &bits, sizeof(bits));
  }
}

Tensor make_float_tensor(std::span<const float> values, std::vector<std::int64_t> shape,
                         DType dtype) {
  TIDEMILL_CHECK(is_float_type(dtype)) << dtype_name(dtype);
  Tensor tensor{dtype, std::move(shape), {}};
  TIDEMILL_CHECK(tensor.num_elements() == static_cast<std::int64_t>(values.size()))
      << values.size();
  HeapAllocator heap;  // never fails
  tensor.data = heap.allocate(values.size() * dtype_bytes(dtype), dtype,
                              [&](std::span<std::byte> out) { round_floats(values, dtype, out); })
                    .value();
  return tensor;
}

Tensor to_float_type(const Tensor& tensor, DType dtype) {
  if (tensor.dtype == dtype) {
    return tensor;
  }
  return make_float_tensor(float_values(tensor), tensor.shape, dtype);
}

TensorMap to_float_type(const TensorMap& tensors, DType dtype) {
  TensorMap converted;
  for (const auto& [name, tensor] : tensors) {
    converted.emplace(name, is_weight_type(tensor.dtype) ? to_float_type(tensor, dtype) : tensor);
  }
  return converted;
}

TensorMap without_blocks(const TensorMap& tensors) {
  TensorMap converted;
  for (const auto& [name, tensor] : tensors) {
    const bool blocks = is_weight_type(tensor.dtype) && !is_float_type(tensor.dtype);
    converted.emplace(name, blocks ? to_float_type(tensor, DType::kF32) : tensor);
  }
  return converted;
}

TensorMap with_types_of(const TensorMap& tensors, const TensorMap& like) {
  TensorMap converted;
  for (const auto& [name, tensor] : tensors) {
    const auto found = like.find(name);
    const bool floats =
        found != like.end() && is_float_type(found->second.dtype) && is_weight_type(tensor.dtype);
    converted.emplace(name, floats ? to_float_type(tensor, found->second.dtype) : tensor);
  }
  return converted;
}

}  // namespace tidemill
