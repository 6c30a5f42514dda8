// SPDX-License-Identifier: Apache-2.0
#include "engines/formats/gguf.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "base/text/quote.hpp"
#include "engines/formats/gguf_cursor.hpp"

namespace tidemill::engines {
namespace {

constexpr std::uint64_t kDefaultAlignment = 32;
constexpr std::int64_t kMinAlignment = 8;
constexpr std::int64_t kMaxAlignment = std::int64_t{1} << 16U;
// The smallest entries: a key with an empty name and a value of one byte, and a tensor of one
// dimension with an empty name.
constexpr std::uint64_t kMinKeyBytes = 8 + 4 + 1;
constexpr std::uint64_t kMinTensorBytes = 8 + 4 + 8 + 4 + 8;

// The types of values, in the order of their numbers.
enum class ValueType : std::uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kList,
  kU64,
  kI64,
  kF64
};

// The minimum size of a value of each type.
constexpr std::array<std::uint64_t, 13> kValueBytes{1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};

struct TensorTypeRow {
  std::uint32_t number;
  std::string_view name;
  std::optional<DType> dtype = std::nullopt;
};

// Source: `ggml_type` in ggml.h. The missing numbers belonged to types that were removed.
constexpr std::array<TensorTypeRow, 34> kTensorTypes{{
    {0, "F32", DType::kF32},
    {1, "F16", DType::kF16},
    {2, "Q4_0"},
    {3, "Q4_1"},
    {6, "Q5_0"},
    {7, "Q5_1"},
    {8, "Q8_0", DType::kBlockI8},
    {9, "Q8_1"},
    {10, "Q2_K"},
    {11, "Q3_K"},
    {12, "Q4_K"},
    {13, "Q5_K"},
    {14, "Q6_K"},
    {15, "Q8_K"},
    {16, "IQ2_XXS"},
    {17, "IQ2_XS"},
    {18, "IQ3_XXS"},
    {19, "IQ1_S"},
    {20, "IQ4_NL"},
    {21, "IQ3_S"},
    {22, "IQ2_S"},
    {23, "IQ4_XS"},
    {24, "I8"},
    {25, "I16"},
    {26, "I32"},
    {27, "I64"},
    {28, "F64"},
    {29, "IQ1_M"},
    {30, "BF16", DType::kBF16},
    {34, "TQ1_0"},
    {35, "TQ2_0"},
    {39, "MXFP4"},
    {40, "NVFP4"},
    {41, "Q1_0"},
}};

// Returns the real that the shortest decimal representation of `value` denotes, for example 1e-5
// instead of 9.99999974738e-06.
double shortest_decimal(float value) {
  if (!std::isfinite(value)) {
    return double{value};
  }
  std::array<char, 32> text{};
  const auto written = std::to_chars(text.data(), text.data() + text.size(), value);
  double real = 0.0;
  std::from_chars(text.data(), written.ptr, real);
  return real;
}

std::uint64_t aligned(std::uint64_t position, std::uint64_t alignment) {
  return (position + alignment - 1) / alignment * alignment;
}

Status check_name(const std::string& name) {
  if (name.empty()) {
    return corrupt_data("a name must not be empty");
  }
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20U || c == 0x7F; };
  if (std::any_of(name.begin(), name.end(), is_control)) {
    return corrupt_data("a name must not contain control characters");
  }
  return {};
}

class HeaderReader {
public:
  HeaderReader(const ReadableFile& file, GgufLists lists, const GgufLimits& limits)
      : file_(file), lists_(lists), limits_(limits), cursor_(file, limits.max_header_bytes) {}

  Result<GgufHeader> read();

private:
  // Reads a count of items that take at least `min_bytes` each.
  Result<std::uint64_t> count(std::string_view what, std::uint64_t min_bytes,
                              std::uint64_t max_count);
  Status read_keys(std::uint64_t num_keys);
  Result<Json> value(ValueType type, int depth);
  template <class T>
  Result<Json> integer();
  Result<Json> list(int depth);
  Result<ValueType> value_type();
  Status check_not_split() const;
  Result<std::uint64_t> alignment() const;
  Status read_tensors(std::uint64_t num_tensors);
  Status read_tensor(GgufTensor& tensor);
  Status read_shape(GgufTensor& tensor);
  Status resolve_offsets(std::uint64_t alignment);

  const ReadableFile& file_;
  GgufLists lists_;
  const GgufLimits& limits_;
  GgufCursor cursor_;
  GgufHeader header_;
  std::uint64_t num_values_ = 0;
};

Result<std::uint64_t> HeaderReader::count(std::string_view what, std::uint64_t min_bytes,
                                          std::uint64_t max_count) {
  TIDEMILL_ASSIGN_OR_RETURN(const auto number, cursor_.number<std::uint64_t>());
  if (number > cursor_.remaining() / min_bytes) {
    return corrupt_data(std::to_string(number) + " " + std::string(what) +
                        " do not fit in the remaining " + std::to_string(cursor_.remaining()) +
                        " bytes");
  }
  if (number > max_count) {
    return invalid_argument(std::to_string(number) + " " + std::string(what) + "; at most " +
                            std::to_string(max_count) + " are read");
  }
  return number;
}

Result<ValueType> HeaderReader::value_type() {
  TIDEMILL_ASSIGN_OR_RETURN(const auto number, cursor_.number<std::uint32_t>());
  if (number >= kValueBytes.size()) {
    return corrupt_data("unknown value type " + std::to_string(number) + "; the types are 0 to 12");
  }
  return static_cast<ValueType>(number);
}

template <class T>
Result<Json> HeaderReader::integer() {
  TIDEMILL_ASSIGN_OR_RETURN(const T number, cursor_.number<T>());
  if constexpr (sizeof(T) == 8 && std::is_unsigned_v<T>) {
    if (number > static_cast<T>(std::numeric_limits<std::int64_t>::max())) {
      return Json{static_cast<double>(number)};
    }
  }
  return Json{static_cast<std::int64_t>(number)};
}

Result<Json> HeaderReader::value(ValueType type, int depth) {
  switch (type) {
    case ValueType::kU8: return integer<std::uint8_t>();
    case ValueType::kI8: return integer<std::int8_t>();
    case ValueType::kU16: return integer<std::uint16_t>();
    case ValueType::kI16: return integer<std::int16_t>();
    case ValueType::kU32: return integer<std::uint32_t>();
    case ValueType::kI32: return integer<std::int32_t>();
    case ValueType::kU64: return integer<std::uint64_t>();
    case ValueType::kI64: return integer<std::int64_t>();
    case ValueType::kF32: {
      TIDEMILL_ASSIGN_OR_RETURN(const float number, cursor_.number<float>());
      return Json(shortest_decimal(number));
    }
    case ValueType::kF64: {
      TIDEMILL_ASSIGN_OR_RETURN(const double number, cursor_.number<double>());
      return Json(number);
    }
    case ValueType::kBool: {
      TIDEMILL_ASSIGN_OR_RETURN(const auto byte, cursor_.number<std::uint8_t>());
      if (byte > 1) {
        return corrupt_data("a boolean must be 0 or 1, not " + std::to_string(byte));
      }
      return Json(byte == 1);
    }
    case ValueType::kString: {
      TIDEMILL_ASSIGN_OR_RETURN(std::string text, cursor_.string(limits_.max_string_bytes));
      return Json(std::move(text));
    }
    case ValueType::kList: return list(depth + 1);
  }
  return corrupt_data("unknown value type");
}

Result<Json> HeaderReader::list(int depth) {
  if (depth > limits_.max_depth) {
    return invalid_argument("lists nested deeper than " + std::to_string(limits_.max_depth));
  }
  TIDEMILL_ASSIGN_OR_RETURN(const ValueType type, value_type());
  const std::uint64_t bytes = kValueBytes.at(static_cast<std::size_t>(type));
  TIDEMILL_ASSIGN_OR_RETURN(const std::uint64_t size,
                            count("values", bytes, limits_.max_values - num_values_));
  num_values_ += size;
  Json::Array values;
  if (lists_ == GgufLists::kSkip && type != ValueType::kList && type != ValueType::kString) {
    TIDEMILL_RETURN_IF_ERROR(cursor_.skip(size * bytes));
    return Json(std::move(values));
  }
  values.reserve(lists_ == GgufLists::kRead ? static_cast<std::size_t>(size) : 0);
  for (std::uint64_t i = 0; i < size; ++i) {
    Result<Json> item = value(type, depth);
    TIDEMILL_RETURN_IF_ERROR(item.status().with_context("value " + std::to_string(i)));
    if (lists_ == GgufLists::kRead) {
      values.push_back(std::move(item).value());
    }
  }
  return Json(std::move(values));
}

Status HeaderReader::read_keys(std::uint64_t num_keys) {
  Json::Object keys;
  std::set<std::string> seen;
  for (std::uint64_t i = 0; i < num_keys; ++i) {
    const auto named = [&]() -> Result<std::string> {
      TIDEMILL_ASSIGN_OR_RETURN(std::string name, cursor_.string(limits_.max_key_bytes));
      TIDEMILL_RETURN_IF_ERROR(check_name(name));
      return name;
    };
    const Result<std::string> name = named();
    TIDEMILL_RETURN_IF_ERROR(name.status().with_context("key " + std::to_string(i)));
    const std::string location = "key " + quote(name.value());
    if (!seen.insert(name.value()).second) {
      return corrupt_data(location + ": appears twice");
    }
    const Result<ValueType> type = value_type();
    TIDEMILL_RETURN_IF_ERROR(type.status().with_context(location));
    Result<Json> read = value(type.value(), 0);
    TIDEMILL_RETURN_IF_ERROR(read.status().with_context(location));
    keys.push_back({name.value(), std::move(read).value()});
  }
  header_.keys = Json(std::move(keys));
  return {};
}

Status HeaderReader::check_not_split() const {
  const Json* parts = header_.keys.find("split.count");
  if (parts != nullptr && (parts->if_integer() == nullptr || *parts->if_integer() > 1)) {
    return {Errc::kUnimplemented,
            "key \"split.count\": split files are not supported; merge them first"};
  }
  return {};
}

Result<std::uint64_t> HeaderReader::alignment() const {
  const Json* key = header_.keys.find("general.alignment");
  if (key == nullptr) {
    return kDefaultAlignment;
  }
  const std::int64_t* number = key->if_integer();
  if (number == nullptr || *number < kMinAlignment || *number > kMaxAlignment ||
      !std::has_single_bit(static_cast<std::uint64_t>(*number))) {
    return corrupt_data("key \"general.alignment\": must be a power of two from " +
                        std::to_string(kMinAlignment) + " to " + std::to_string(kMaxAlignment));
  }
  return static_cast<std::uint64_t>(*number);
}

Status HeaderReader::read_shape(GgufTensor& tensor) {
  TIDEMILL_ASSIGN_OR_RETURN(const auto num_dimensions, cursor_.number<std::uint32_t>());
  if (num_dimensions < 1 || num_dimensions > limits_.max_dimensions) {
    return corrupt_data(std::to_string(num_dimensions) + " dimensions; there must be 1 to " +
                        std::to_string(limits_.max_dimensions));
  }
  for (std::uint32_t i = 0; i < num_dimensions; ++i) {
    TIDEMILL_ASSIGN_OR_RETURN(const auto extent, cursor_.number<std::int64_t>());
    if (extent < 1) {
      return corrupt_data("dimension " + std::to_string(i) + " must be 1 to 2^63-1");
    }
    tensor.shape.push_back(extent);
  }
  std::reverse(tensor.shape.begin(), tensor.shape.end());
  return {};
}

Status HeaderReader::read_tensor(GgufTensor& tensor) {
  TIDEMILL_RETURN_IF_ERROR(read_shape(tensor));
  TIDEMILL_ASSIGN_OR_RETURN(const auto number, cursor_.number<std::uint32_t>());
  const auto* row = std::find_if(kTensorTypes.begin(), kTensorTypes.end(),
                                 [number](const TensorTypeRow& r) { return r.number == number; });
  if (row == kTensorTypes.end()) {
    return corrupt_data("type " + std::to_string(number) + " is unknown");
  }
  if (!row->dtype.has_value()) {
    return {Errc::kUnimplemented,
            "type " + std::string(row->name) + "; only F32, F16, BF16 and Q8_0 are supported"};
  }
  tensor.dtype = *row->dtype;
  const auto block = static_cast<std::int64_t>(dtype_block_elements(tensor.dtype));
  if (tensor.shape.back() % block != 0) {
    return corrupt_data("rows of " + std::to_string(tensor.shape.back()) +
                        " elements; Q8_0 needs a multiple of " + std::to_string(block));
  }
  TIDEMILL_ASSIGN_OR_RETURN(tensor.begin, cursor_.number<std::uint64_t>());
  return {};
}

Status HeaderReader::read_tensors(std::uint64_t num_tensors) {
  std::set<std::string> seen;
  for (std::uint64_t i = 0; i < num_tensors; ++i) {
    GgufTensor tensor;
    const auto named = [&]() -> Status {
      TIDEMILL_ASSIGN_OR_RETURN(tensor.name, cursor_.string(limits_.max_tensor_name_bytes));
      return check_name(tensor.name);
    };
    TIDEMILL_RETURN_IF_ERROR(named().with_context("tensor " + std::to_string(i)));
    const std::string location = "tensor " + quote(tensor.name);
    if (!seen.insert(tensor.name).second) {
      return corrupt_data(location + ": appears twice");
    }
    TIDEMILL_RETURN_IF_ERROR(read_tensor(tensor).with_context(location));
    header_.tensors.push_back(std::move(tensor));
  }
  return {};
}

// Converts offsets in the data to offsets in the file. In the order of their offsets, each tensor
// must begin where the previous one ends, apart from padding, and the last one must end at the end
// of the file.
Status HeaderReader::resolve_offsets(std::uint64_t alignment) {
  if (header_.tensors.empty()) {
    return {};
  }
  std::vector<GgufTensor*> order;
  for (GgufTensor& tensor : header_.tensors) {
    order.push_back(&tensor);
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const auto* a, const auto* b) { return a->begin < b->begin; });
  const std::uint64_t start = aligned(cursor_.position(), alignment);
  if (start > file_.size_bytes()) {
    return corrupt_data("data begins at byte " + std::to_string(start) + ", but the file has " +
                        std::to_string(file_.size_bytes()) + " bytes");
  }
  const std::uint64_t data_size = file_.size_bytes() - start;
  std::uint64_t position = 0;
  for (GgufTensor* tensor : order) {
    const std::string location = "tensor " + quote(tensor->name) + ": ";
    if (tensor->begin % alignment != 0) {
      return corrupt_data(location + "offset " + std::to_string(tensor->begin) +
                          " is not a multiple of the alignment, " + std::to_string(alignment));
    }
    if (tensor->begin != aligned(position, alignment)) {
      return corrupt_data(
          location +
          (tensor->begin < position ? "overlaps the tensor before it" : "leaves a gap before it") +
          ": begins at " + std::to_string(tensor->begin) + ", expected " +
          std::to_string(aligned(position, alignment)));
    }
    const std::optional<std::uint64_t> bytes = tensor_bytes(tensor->dtype, tensor->shape);
    if (!bytes.has_value()) {
      return corrupt_data(location + "its dimensions need more than 2^63-1 bytes");
    }
    if (tensor->begin > data_size || *bytes > data_size - tensor->begin) {
      return corrupt_data(location + "needs " + std::to_string(*bytes) + " bytes at offset " +
                          std::to_string(tensor->begin) + ", but the data area has " +
                          std::to_string(data_size));
    }
    position = tensor->begin + *bytes;
    tensor->begin += start;
    tensor->end = start + position;
  }
  if (data_size > aligned(position, alignment)) {
    return corrupt_data(std::to_string(data_size - position) + " bytes follow the last tensor");
  }
  return {};
}

Result<GgufHeader> HeaderReader::read() {
  constexpr std::array<char, 4> kMagic{'G', 'G', 'U', 'F'};
  std::array<char, 4> magic{};
  if (file_.size_bytes() < magic.size()) {
    return corrupt_data(std::to_string(file_.size_bytes()) + " bytes; not a GGUF file");
  }
  TIDEMILL_RETURN_IF_ERROR(cursor_.read(std::as_writable_bytes(std::span(magic))));
  if (magic != kMagic) {
    const bool pointer = std::string_view(magic.data(), magic.size()) == "vers";
    return pointer ? invalid_argument("is a Git LFS pointer, not the file itself; run git lfs pull")
                   : corrupt_data("not a GGUF file: begins with " +
                                  quote(std::string_view(magic.data(), magic.size())));
  }
  TIDEMILL_ASSIGN_OR_RETURN(header_.version, cursor_.number<std::uint32_t>());
  if (header_.version != 2 && header_.version != 3) {
    return Status(Errc::kUnimplemented,
                  "version " + std::to_string(header_.version) + " is not supported; only 2 and 3" +
                      (header_.version % 0x10000U == 0 ? " (little-endian)" : ""));
  }
  TIDEMILL_ASSIGN_OR_RETURN(const auto num_tensors,
                            count("tensors", kMinTensorBytes, limits_.max_tensors));
  TIDEMILL_ASSIGN_OR_RETURN(const auto num_keys, count("keys", kMinKeyBytes, limits_.max_keys));
  TIDEMILL_RETURN_IF_ERROR(read_keys(num_keys));
  TIDEMILL_RETURN_IF_ERROR(check_not_split());
  TIDEMILL_ASSIGN_OR_RETURN(const std::uint64_t alignment, this->alignment());
  TIDEMILL_RETURN_IF_ERROR(read_tensors(num_tensors));
  TIDEMILL_RETURN_IF_ERROR(resolve_offsets(alignment));
  return std::move(header_);
}

}  // namespace

Result<GgufHeader> read_gguf_header(const ReadableFile& file, GgufLists lists,
                                    const GgufLimits& limits) {
  Result<GgufHeader> header = HeaderReader(file, lists, limits).read();
  const std::string location = file.path().string();
  if (!header.ok() && !header.status().message().starts_with(location)) {
    return header.status().with_context(location);
  }
  return header;
}

Result<TensorMap> read_gguf_tensors(const ReadableFile& file, const GgufHeader& header,
                                    TensorPlacement placement) {
  TensorMap tensors;
  Buffer whole;
  if (placement == TensorPlacement::kMapped) {
    TIDEMILL_ASSIGN_OR_RETURN(whole, file.map());
  }
  for (const GgufTensor& tensor : header.tensors) {
    const auto begin = static_cast<std::size_t>(tensor.begin);
    const auto size = static_cast<std::size_t>(tensor.end - tensor.begin);
    Tensor made{tensor.dtype, tensor.shape, {}};
    if (placement == TensorPlacement::kMapped) {
      made.data = whole.slice(begin, size, tensor.dtype);
    } else {
      TIDEMILL_ASSIGN_OR_RETURN(made.data, read_copy(file, begin, size, tensor.dtype));
    }
    tensors.emplace(tensor.name, std::move(made));
  }
  return tensors;
}

}  // namespace tidemill::engines
