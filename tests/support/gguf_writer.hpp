// SPDX-License-Identifier: Apache-2.0
// Makes the bytes of GGUF files without any check, so that tests can make invalid files too.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/tensor/tensor.hpp"

namespace tidemill::test {

/// The numbers of value types and tensor types in the format.
enum GgufNumber : std::uint32_t {
  kGgufU8 = 0,
  kGgufU32 = 4,
  kGgufI32 = 5,
  kGgufF32 = 6,
  kGgufBool = 7,
  kGgufString = 8,
  kGgufList = 9,
  kGgufU64 = 10,
  kGgufTypeF32 = 0,
  kGgufTypeF16 = 1,
  kGgufTypeQ80 = 8,
  kGgufTypeBf16 = 30,
};

/// Returns the bytes of a number.
template <class T>
[[nodiscard]] std::string gguf_bytes(T value) {
  std::string bytes(sizeof(value), '\0');
  std::memcpy(bytes.data(), &value, sizeof(value));
  return bytes;
}

/// Returns a string as the format encodes it: its length, then its bytes.
[[nodiscard]] inline std::string gguf_text(std::string_view text) {
  return gguf_bytes(std::uint64_t{text.size()}) + std::string(text);
}

/// Builds a file. Header fields that are not set get the values that match what was added.
class GgufWriter {
public:
  std::string magic = "GGUF";
  std::uint32_t version = 3;
  std::uint64_t alignment = 32;  // of the padding; the caller must add the key for it
  std::optional<std::uint64_t> num_tensors;
  std::optional<std::uint64_t> num_keys;

  /// Adds a key with a value of `type`, given as bytes.
  void key(std::string_view name, std::uint32_t type, const std::string& value) {
    keys_ += gguf_text(name) + gguf_bytes(type) + value;
    ++key_count_;
  }
  void u32(std::string_view name, std::uint32_t value) { key(name, kGgufU32, gguf_bytes(value)); }
  void f32(std::string_view name, float value) { key(name, kGgufF32, gguf_bytes(value)); }
  void boolean(std::string_view name, bool value) {
    key(name, kGgufBool, gguf_bytes(static_cast<std::uint8_t>(value ? 1 : 0)));
  }
  void text(std::string_view name, std::string_view value) {
    key(name, kGgufString, gguf_text(value));
  }
  void texts(std::string_view name, const std::vector<std::string>& values) {
    std::string bytes =
        gguf_bytes(std::uint32_t{kGgufString}) + gguf_bytes(std::uint64_t{values.size()});
    for (const std::string& value : values) {
      bytes += gguf_text(value);
    }
    key(name, kGgufList, bytes);
  }
  void integers(std::string_view name, const std::vector<std::int32_t>& values) {
    std::string bytes =
        gguf_bytes(std::uint32_t{kGgufI32}) + gguf_bytes(std::uint64_t{values.size()});
    for (const std::int32_t value : values) {
      bytes += gguf_bytes(value);
    }
    key(name, kGgufList, bytes);
  }

  /// Adds a tensor. `dimensions` are in the order of the format, the fastest first. Its data follow
  /// the data of the tensors before it, whatever `offset` says.
  void tensor(std::string_view name, const std::vector<std::uint64_t>& dimensions,
              std::uint32_t type, std::string_view data,
              std::optional<std::uint64_t> offset = std::nullopt) {
    data_.resize((data_.size() + alignment - 1) / alignment * alignment, '\0');
    tensors_ += gguf_text(name) + gguf_bytes(static_cast<std::uint32_t>(dimensions.size()));
    for (const std::uint64_t extent : dimensions) {
      tensors_ += gguf_bytes(extent);
    }
    tensors_ += gguf_bytes(type) + gguf_bytes(offset.value_or(data_.size()));
    data_ += data;
    ++tensor_count_;
  }
  /// Adds a tensor whose type exists in the format.
  void tensor(std::string_view name, const Tensor& tensor) {
    const std::vector<std::uint64_t> dimensions(tensor.shape.rbegin(), tensor.shape.rend());
    const auto bytes = tensor.data.bytes();
    this->tensor(name, dimensions, type_of(tensor.dtype),
                 {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }

  /// Returns everything before the data, padded.
  [[nodiscard]] std::string header() const {
    std::string bytes = magic + gguf_bytes(version) +
                        gguf_bytes(num_tensors.value_or(tensor_count_)) +
                        gguf_bytes(num_keys.value_or(key_count_)) + keys_ + tensors_;
    if (tensor_count_ > 0) {
      bytes.resize((bytes.size() + alignment - 1) / alignment * alignment, '\0');
    }
    return bytes;
  }
  /// Returns the whole file.
  [[nodiscard]] std::string bytes() const { return header() + data_; }

private:
  [[nodiscard]] static std::uint32_t type_of(DType dtype) {
    switch (dtype) {
      case DType::kF16: return kGgufTypeF16;
      case DType::kBF16: return kGgufTypeBf16;
      case DType::kBlockI8: return kGgufTypeQ80;
      default: return kGgufTypeF32;
    }
  }

  std::string keys_;
  std::string tensors_;
  std::string data_;
  std::uint64_t key_count_ = 0;
  std::uint64_t tensor_count_ = 0;
};

}  // namespace tidemill::test
