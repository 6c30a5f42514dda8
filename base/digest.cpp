// SPDX-License-Identifier: Apache-2.0
#include "base/digest.hpp"

#include <array>
#include <cstdint>
#include <string_view>
#include <xxhash.h>

#include "base/check.hpp"

namespace tidemill {
namespace {

std::string hex(XXH128_hash_t hash) {
  constexpr std::string_view kHex = "0123456789abcdef";
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  std::string text;
  for (const unsigned char byte : canonical.digest) {
    text += kHex[byte >> 4U];
    text += kHex[byte & 0xFU];
  }
  return text;
}

void update(DigestHasher& hasher, std::uint64_t value) {
  std::array<std::byte, 8> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes.at(i) = static_cast<std::byte>(value >> (8 * i));
  }
  hasher.update(bytes);
}

void update(DigestHasher& hasher, std::string_view text) {
  update(hasher, std::uint64_t{text.size()});
  hasher.update(std::as_bytes(std::span(text)));
}

}  // namespace

struct DigestHasher::State {
  State() : xxh(XXH3_createState()) {
    TIDEMILL_CHECK(xxh != nullptr && XXH3_128bits_reset(xxh) == XXH_OK);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { XXH3_freeState(xxh); }

  XXH3_state_t* xxh;
};

DigestHasher::DigestHasher() : state_(std::make_unique<State>()) {}

DigestHasher::~DigestHasher() = default;

void DigestHasher::update(std::span<const std::byte> bytes) {
  TIDEMILL_CHECK(XXH3_128bits_update(state_->xxh, bytes.data(), bytes.size()) == XXH_OK);
}

std::string DigestHasher::digest() const {
  return hex(XXH3_128bits_digest(state_->xxh));
}

std::string digest_bytes(std::span<const std::byte> bytes) {
  return hex(XXH3_128bits(bytes.data(), bytes.size()));
}

DigestKey digest_key(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.low64, hash.high64};
}

TensorHasher::TensorHasher(std::size_t num_tensors) {
  constexpr std::string_view kFormat = "tidemill tensors 1";
  hasher_.update(std::as_bytes(std::span(kFormat)));
  update(hasher_, std::uint64_t{num_tensors});
}

void TensorHasher::add(std::string_view name, const Tensor& tensor) {
  begin(name, tensor.dtype, tensor.shape, tensor.data.size_bytes());
  append(tensor.data.bytes());
}

void TensorHasher::begin(std::string_view name, DType dtype, std::span<const std::int64_t> shape,
                         std::size_t size_bytes) {
  update(hasher_, name);
  update(hasher_, dtype_name(dtype));
  update(hasher_, std::uint64_t{shape.size()});
  for (const std::int64_t extent : shape) {
    update(hasher_, static_cast<std::uint64_t>(extent));
  }
  update(hasher_, std::uint64_t{size_bytes});
}

std::string digest_tensors(const TensorMap& tensors) {
  TensorHasher hasher(tensors.size());
  for (const auto& [name, tensor] : tensors) {
    hasher.add(name, tensor);
    tensor.data.release_pages();  // so that a mapped model does not fill the memory
  }
  return hasher.digest();
}

}  // namespace tidemill
