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

#include "base/quote.hpp"
#include "engines/formats/gguf_cursor.hpp"

namespace tidemill::engines {
namespace {

constexpr std::uint64_t kDefaultAlignment = 32;
constexpr std::int64_t kLeastAlignment = 8;
constexpr std::int64_t kMostAlignment = std::int64_t{1} << 16U;
// A key with an empty name and a byte for its value; a tensor of one dimension with an empty name.
constexpr std::uint64_t kLeastKeyBytes = 8 + 4 + 1;
constexpr std::uint64_t kLeastTensorBytes = 8 + 4 + 8 + 4 + 8;

// Types of values, by their number.
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

// The least bytes that a value of a type takes.
constexpr std::array<std::uint64_t, 13> kValueBytes{1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};

struct TensorTypeRow {
  std::uint32_t number;
  std::string_view name;
  std::optional<DType> dtype = std::nullopt;
};

// Source: `ggml_type` in ggml.h; numbers that are left out belonged to types that were given up.
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

// The real that the shortest decimal spelling of `value` means: 1e-5, not 9.99999974738e-06.
double as_spelled(float value) {
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
    return corrupt_data("a name must not hold control characters");
  }
  return {};
}

class HeaderReader {
public:
  HeaderReader(const ReadableFile& file, GgufLists lists, const GgufLimits& limits)
      : file_(file), lists_(lists), limits_(limits), cursor_(file, limits.max_header_bytes) {}

  Result<GgufHeader> read();

private:
  // A count of things that take at least `least_bytes` each.
  Result<std::uint64_t> count(std::string_view what, std::uint64_t least_bytes, std::uint64_t most);
  Status read_keys(std::uint64_t num_keys);
  Result<Json> value(ValueType type, int depth);
  template <class T>
  Result<Json> integer();
  Result<Json> list(int depth);
  Result<ValueType> value_type();
  Status check_whole() const;
  Result<std::uint64_t> alignment() const;
  Status read_tensors(std::uint64_t num_tensors);
  Status read_tensor(GgufTensor& tensor);
  Status read_shape(GgufTensor& tensor);
  Status place_tensors(std::uint64_t alignment);

  const ReadableFile& file_;
  GgufLists lists_;
  const GgufLimits& limits_;
  GgufCursor cursor_;
  GgufHeader header_;
  std::uint64_t num_values_ = 0;
};

Result<std::uint64_t> HeaderReader::count(std::string_view what, std::uint64_t least_bytes,
                                          std::uint64_t most) {
  TIDEMILL_ASSIGN_OR_RETURN(const auto number, cursor_.number<std::uint64_t>());
  if (number > cursor_.remaining() / least_bytes) {
    return corrupt_data(std::to_string(number) + " " + std::string(what) + " cannot stand in " +
                        std::to_string(cursor_.remaining()) + " bytes");
  }
  if (number > most) {
    return invalid_argument(std::to_string(number) + " " + std::string(what) + "; at most " +
                            std::to_string(most) + " are read");
  }
  return number;
}

Result<ValueType> HeaderReader::value_type() {
  TIDEMILL_ASSIGN_OR_RETURN(const auto number, cursor_.number<std::uint32_t>());
  if (number >= kValueBytes.size()) {
    return corrupt_data("value type " + std::to_string(number) + " is unknown; there are 13");
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
      return Json(as_spelled(number));
    }
    case ValueType::kF64: {
      TIDEMILL_ASSIGN_OR_RETURN(const double number, cursor_.number<double>());
      return Json(number);
    }
    case ValueType::kBool: {
      TIDEMILL_ASSIGN_OR_RETURN(const auto byte, cursor_.number<std::uint8_t>());
      if (byte > 1) {
        return corrupt_data("a truth value must be 0 or 1, not " + std::to_string(byte));
      }
      return Json(byte == 1);
    }
    case ValueType::kString: {
      TIDEMILL_ASSIGN_OR_RETURN(std::string text, cursor_.string(limits_.max_string_bytes));
      return Json(std::move(text));
    }
    case ValueType::kList: return list(depth + 1);
  }
  return corrupt_data("value type is unknown");
}

Result<Json> HeaderReader::list(int depth) {
  if (depth > limits_.max_depth) {
    return invalid_argument("lists in lists, more than " + std::to_string(limits_.max_depth) +
                            " deep");
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
    const std::string place = "key " + quote(name.value());
    if (!seen.insert(name.value()).second) {
      return corrupt_data(place + ": comes twice");
    }
    const Result<ValueType> type = value_type();
    TIDEMILL_RETURN_IF_ERROR(type.status().with_context(place));
    Result<Json> read = value(type.value(), 0);
    TIDEMILL_RETURN_IF_ERROR(read.status().with_context(place));
    keys.push_back({name.value(), std::move(read).value()});
  }
  header_.keys = Json(std::move(keys));
  return {};
}

Status HeaderReader::check_whole() const {
  const Json* parts = header_.keys.find("split.count");
  if (parts != nullptr && (parts->if_integer() == nullptr || *parts->if_integer() > 1)) {
    return {
        Errc::kUnimplemented,
        "key \"split.count\": a file that is one of several parts is not read; join them first"};
  }
  return {};
}

Result<std::uint64_t> HeaderReader::alignment() const {
  const Json* key = header_.keys.find("general.alignment");
  if (key == nullptr) {
    return kDefaultAlignment;
  }
  const std::int64_t* number = key->if_integer();
  if (number == nullptr || *number < kLeastAlignment || *number > kMostAlignment ||
      !std::has_single_bit(static_cast<std::uint64_t>(*number))) {
    return corrupt_data("key \"general.alignment\": must be a power of two from " +
                        std::to_string(kLeastAlignment) + " to " + std::to_string(kMostAlignment));
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
            "type " + std::string(row->name) + "; only F32, F16, BF16 and Q8_0 are read"};
  }
  tensor.dtype = *row->dtype;
  const auto block = static_cast<std::int64_t>(dtype_block_elements(tensor.dtype));
  if (tensor.shape.back() % block != 0) {
    return corrupt_data("rows of " + std::to_string(tensor.shape.back()) +
                        " elements; Q8_0 has blocks of " + std::to_string(block));
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
    const std::string place = "tensor " + quote(tensor.name);
    if (!seen.insert(tensor.name).second) {
      return corrupt_data(place + ": comes twice");
    }
    TIDEMILL_RETURN_IF_ERROR(read_tensor(tensor).with_context(place));
    header_.tensors.push_back(std::move(tensor));
  }
  return {};
}

// Offsets become places in the file. In the order of their offsets each tensor must begin where the
// one before it ends, but for the padding, and the last must end where the file does.
Status HeaderReader::place_tensors(std::uint64_t alignment) {
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
    return corrupt_data("data begin at byte " + std::to_string(start) + " of a file of " +
                        std::to_string(file_.size_bytes()));
  }
  const std::uint64_t data_size = file_.size_bytes() - start;
  std::uint64_t position = 0;
  for (GgufTensor* tensor : order) {
    const std::string place = "tensor " + quote(tensor->name) + ": ";
    if (tensor->begin % alignment != 0) {
      return corrupt_data(place + "offset " + std::to_string(tensor->begin) +
                          " is no multiple of the alignment, " + std::to_string(alignment));
    }
    if (tensor->begin != aligned(position, alignment)) {
      return corrupt_data(
          place +
          (tensor->begin < position ? "overlaps the tensor before it" : "leaves a gap before it") +
          ": begins at " + std::to_string(tensor->begin) + ", expected " +
          std::to_string(aligned(position, alignment)));
    }
    const std::optional<std::uint64_t> bytes = tensor_bytes(tensor->dtype, tensor->shape);
    if (!bytes.has_value()) {
      return corrupt_data(place + "its dimensions are beyond 2^63-1 bytes");
    }
    if (tensor->begin > data_size || *bytes > data_size - tensor->begin) {
      return corrupt_data(place + "needs " + std::to_string(*bytes) + " bytes from " +
                          std::to_string(tensor->begin) + " of a data area of " +
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
    return corrupt_data(std::to_string(file_.size_bytes()) + " bytes; no GGUF file");
  }
  TIDEMILL_RETURN_IF_ERROR(cursor_.read(std::as_writable_bytes(std::span(magic))));
  if (magic != kMagic) {
    const bool pointer = std::string_view(magic.data(), magic.size()) == "vers";
    return pointer ? invalid_argument(
                         "stands for a file of Git LFS that was not fetched (git lfs pull)")
                   : corrupt_data("no GGUF file: begins with " +
                                  quote(std::string_view(magic.data(), magic.size())));
  }
  TIDEMILL_ASSIGN_OR_RETURN(header_.version, cursor_.number<std::uint32_t>());
  if (header_.version != 2 && header_.version != 3) {
    return Status(Errc::kUnimplemented,
                  "version " + std::to_string(header_.version) + "; only 2 and 3 are read" +
                      (header_.version % 0x10000U == 0 ? " (low byte first)" : ""));
  }
  TIDEMILL_ASSIGN_OR_RETURN(const auto num_tensors,
                            count("tensors", kLeastTensorBytes, limits_.max_tensors));
  TIDEMILL_ASSIGN_OR_RETURN(const auto num_keys, count("keys", kLeastKeyBytes, limits_.max_keys));
  TIDEMILL_RETURN_IF_ERROR(read_keys(num_keys));
  TIDEMILL_RETURN_IF_ERROR(check_whole());
  TIDEMILL_ASSIGN_OR_RETURN(const std::uint64_t alignment, this->alignment());
  TIDEMILL_RETURN_IF_ERROR(read_tensors(num_tensors));
  TIDEMILL_RETURN_IF_ERROR(place_tensors(alignment));
  return std::move(header_);
}

}  // namespace

Result<GgufHeader> read_gguf_header(const ReadableFile& file, GgufLists lists,
                                    const GgufLimits& limits) {
  Result<GgufHeader> header = HeaderReader(file, lists, limits).read();
  const std::string place = file.path().string();
  if (!header.ok() && !header.status().message().starts_with(place)) {
    return header.status().with_context(place);
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
      std::vector<std::byte> bytes(size);
      TIDEMILL_RETURN_IF_ERROR(file.read_at(tensor.begin, bytes));
      made.data = Buffer::adopt(std::move(bytes), DType::kU8).slice(0, size, tensor.dtype);
    }
    tensors.emplace(tensor.name, std::move(made));
  }
  return tensors;
}

}  // namespace tidemill::engines
