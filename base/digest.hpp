// SPDX-License-Identifier: Apache-2.0
// Content digests: xxh3-128, written as 32 lowercase hexadecimal digits.
//
// They detect damage and name content. They do not protect against an attacker who chooses content.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/tensor/dtype.hpp"
#include "base/tensor/tensor.hpp"

namespace tidemill {

/// Computes the digest of bytes that arrive in pieces. The result does not depend on how the bytes
/// are split.
class DigestHasher {
public:
  DigestHasher();
  DigestHasher(const DigestHasher&) = delete;
  DigestHasher& operator=(const DigestHasher&) = delete;
  ~DigestHasher();

  /// Appends `bytes`.
  void update(std::span<const std::byte> bytes);
  /// Returns the digest of all bytes so far; more may follow.
  [[nodiscard]] std::string digest() const;

private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Returns the digest of `bytes`.
[[nodiscard]] std::string digest_bytes(std::span<const std::byte> bytes);

/// A digest as numbers, for use as a key in a table.
struct DigestKey {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  friend bool operator==(const DigestKey&, const DigestKey&) = default;
};

/// Returns the digest of `bytes` as a key.
[[nodiscard]] DigestKey digest_key(std::span<const std::byte> bytes);

/// Returns the digest of the names, element types, shapes and elements of `tensors`, in name order.
/// Equal tensors have equal digests, whatever file, order or alignment they were read with.
///
/// The digested bytes are, with integers as 8 little-endian bytes: the text "tidemill tensors 1"
/// and the number of tensors; then for each tensor the length of its name, the name, the length of
/// its type's name, that name, the number of dimensions, each extent, the number of data bytes, and
/// the data.
[[nodiscard]] std::string digest_tensors(const TensorMap& tensors);

/// Computes `digest_tensors` one tensor, or one part of a tensor, at a time.
class TensorHasher {
public:
  /// `num_tensors` tensors will be added.
  explicit TensorHasher(std::size_t num_tensors);

  /// Appends a tensor. The names of tensors ascend.
  void add(std::string_view name, const Tensor& tensor);
  /// Begins a tensor of `size_bytes` bytes, which `append` adds part by part.
  void begin(std::string_view name, DType dtype, std::span<const std::int64_t> shape,
             std::size_t size_bytes);
  /// Appends the next bytes of the tensor that was begun.
  void append(std::span<const std::byte> bytes) { hasher_.update(bytes); }
  /// Returns the digest. Requires that all tensors were added.
  [[nodiscard]] std::string digest() const { return hasher_.digest(); }

private:
  DigestHasher hasher_;
};

}  // namespace tidemill
