// SPDX-License-Identifier: Apache-2.0
// Content digests: xxh3-128, written as 32 lower-case hexadecimal digits.
//
// They find damage and name content; they are no defence against somebody who chooses the content.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/tensor.hpp"

namespace tidemill {

/// Digests bytes that arrive in pieces; how they are cut does not matter.
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

/// A digest as numbers, for keys of tables.
struct DigestKey {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  friend bool operator==(const DigestKey&, const DigestKey&) = default;
};

/// Returns the digest of `bytes` as a key.
[[nodiscard]] DigestKey digest_key(std::span<const std::byte> bytes);

/// Returns the digest of names, element types, shapes and elements, in name order: equal for equal
/// tensors, whatever file, order or alignment they were read from.
///
/// Digested, with integers as 8 bytes, low byte first: the text "tidemill tensors 1", the number of
/// tensors, then for each the name's length, the name, the length of the type's name, that name,
/// the number of dimensions, each extent, the number of data bytes, and the data.
[[nodiscard]] std::string digest_tensors(const TensorMap& tensors);

}  // namespace tidemill
