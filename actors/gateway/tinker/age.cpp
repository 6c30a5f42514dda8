// SPDX-License-Identifier: Apache-2.0
#include "actors/gateway/tinker/age.hpp"

#include <algorithm>
#include <cstdint>
#include <sodium.h>
#include <vector>

#include "base/check.hpp"

namespace tidemill::actors::tinker {
namespace {

using Key = std::array<unsigned char, 32>;

constexpr std::string_view kVersion = "age-encryption.org/v1";
constexpr std::size_t kChunkBytes = std::size_t{64} << 10U;

std::span<const unsigned char> bytes_of(std::string_view text) {
  return {reinterpret_cast<const unsigned char*>(text.data()), text.size()};
}

Key hmac(std::span<const unsigned char> key, std::string_view message) {
  Key out{};
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, key.data(), key.size());
  crypto_auth_hmacsha256_update(&state, bytes_of(message).data(), message.size());
  crypto_auth_hmacsha256_final(&state, out.data());
  return out;
}

// HKDF-SHA-256 with an output of one block.
Key derive(std::span<const unsigned char> secret, std::string_view salt, std::string_view info) {
  const Key zero{};
  const std::string_view secret_text(reinterpret_cast<const char*>(secret.data()), secret.size());
  const Key extracted = salt.empty() ? hmac(zero, secret_text) : hmac(bytes_of(salt), secret_text);
  return hmac(extracted, std::string(info) + '\x01');
}

std::string base64(std::span<const unsigned char> bytes) {
  constexpr int kVariant = sodium_base64_VARIANT_ORIGINAL_NO_PADDING;
  std::string text(sodium_base64_encoded_len(bytes.size(), kVariant), '\0');
  sodium_bin2base64(text.data(), text.size(), bytes.data(), bytes.size(), kVariant);
  text.pop_back();  // the terminating zero
  return text;
}

std::string text_of(std::span<const unsigned char> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Returns `plain` sealed with a nonce.
std::string sealed(std::string_view plain, const Key& key,
                   const std::array<unsigned char, 12>& nonce) {
  std::string out(plain.size() + crypto_aead_chacha20poly1305_ietf_ABYTES, '\0');
  crypto_aead_chacha20poly1305_ietf_encrypt(reinterpret_cast<unsigned char*>(out.data()), nullptr,
                                            bytes_of(plain).data(), plain.size(), nullptr, 0,
                                            nullptr, nonce.data(), key.data());
  return out;
}

// Returns the stanza of a recipient, which wraps the file's key.
std::string stanza(std::string_view file_key, const AgeRecipient& recipient,
                   const RandomBytes& random) {
  Key ephemeral{};
  random(ephemeral);
  Key share{};
  Key shared{};
  crypto_scalarmult_base(share.data(), ephemeral.data());
  // Fails only for points that `parse_age_recipient` refuses.
  const int failed = crypto_scalarmult(shared.data(), ephemeral.data(), recipient.data());
  TIDEMILL_CHECK(failed == 0) << "the recipient is not a point of the curve";
  const Key wrap =
      derive(shared, text_of(share) + text_of(recipient), std::string(kVersion) + "/X25519");
  const std::string body = sealed(file_key, wrap, {});
  return "-> X25519 " + base64(share) + "\n" + base64(bytes_of(body)) + "\n";
}

// -- Bech32 ---------------------------------------------------------------------------------------

constexpr std::string_view kBech32 = "qpzry9x8gf2tvdw0s3jn54khce6mua7l";

std::uint32_t bech32_step(std::uint32_t sum, std::uint32_t value) {
  constexpr std::array<std::uint32_t, 5> kGenerator = {0x3b6a57b2, 0x26508e6d, 0x1ea119fa,
                                                       0x3d4233dd, 0x2a1462b3};
  const std::uint32_t top = sum >> 25U;
  sum = (sum & 0x1ffffffU) << 5U ^ value;
  for (std::size_t i = 0; i < kGenerator.size(); ++i) {
    sum ^= (top >> i & 1U) != 0 ? kGenerator[i] : 0;
  }
  return sum;
}

// Returns whether the checksum at the end of `values` belongs to the prefix "age" and to them.
bool checksum_fits(const std::vector<std::uint32_t>& values) {
  std::uint32_t sum = 1;
  for (const char c : std::string_view("age")) {
    sum = bech32_step(sum, static_cast<unsigned char>(c) >> 5U);
  }
  sum = bech32_step(sum, 0);
  for (const char c : std::string_view("age")) {
    sum = bech32_step(sum, static_cast<unsigned char>(c) & 31U);
  }
  for (const std::uint32_t value : values) {
    sum = bech32_step(sum, value);
  }
  return sum == 1;
}

}  // namespace

Result<AgeRecipient> parse_age_recipient(std::string_view text) {
  constexpr std::string_view kPrefix = "age1";
  constexpr std::size_t kChecksum = 6;
  constexpr std::size_t kValues = 52;  // of 5 bits, for 32 bytes
  const Status refused =
      invalid_argument("must be a recipient age1...; no other kinds are supported");
  if (!text.starts_with(kPrefix) || text.size() != kPrefix.size() + kValues + kChecksum) {
    return refused;
  }
  std::vector<std::uint32_t> values;
  for (const char c : text.substr(kPrefix.size())) {
    const std::size_t value = kBech32.find(c);
    if (value == std::string_view::npos) {
      return refused;
    }
    values.push_back(static_cast<std::uint32_t>(value));
  }
  if (!checksum_fits(values)) {
    return refused;
  }
  AgeRecipient key{};
  std::uint32_t bits = 0;
  std::size_t count = 0;
  std::size_t filled = 0;
  for (std::size_t i = 0; i < kValues; ++i) {
    bits = (bits << 5U | values[i]) & 0xfffU;
    count += 5;
    if (count >= 8) {
      count -= 8;
      key[filled++] = static_cast<unsigned char>(bits >> count & 0xffU);
    }
  }
  const Key one = {1};
  Key product{};
  const bool has_padding = (bits & ((1U << count) - 1U)) != 0;
  if (has_padding || crypto_scalarmult(product.data(), one.data(), key.data()) != 0) {
    return refused;
  }
  return key;
}

std::string encrypt_age(std::string_view plain, std::span<const AgeRecipient> recipients,
                        const RandomBytes& random) {
  std::array<unsigned char, 16> file_key{};
  random(file_key);
  std::string out(kVersion);
  out += '\n';
  for (const AgeRecipient& recipient : recipients) {
    out += stanza(text_of(file_key), recipient, random);
  }
  out += "---";
  out += " " + base64(hmac(derive(file_key, "", "header"), out)) + "\n";
  std::array<unsigned char, 16> nonce{};
  random(nonce);
  out += text_of(nonce);
  const Key payload = derive(file_key, text_of(nonce), "payload");
  std::array<unsigned char, 12>
      counter{};  // 11 bytes that count chunks, and one that marks the last
  for (std::size_t first = 0;; first += kChunkBytes) {
    const bool is_last = plain.size() - first <= kChunkBytes;
    counter[11] = is_last ? 1 : 0;
    out += sealed(plain.substr(first, kChunkBytes), payload, counter);
    if (is_last) {
      return out;
    }
    for (std::size_t i = 11; i-- > 0 && ++counter[i] == 0;) {
    }
  }
}

std::string encrypt_age(std::string_view plain, std::span<const AgeRecipient> recipients) {
  TIDEMILL_CHECK(sodium_init() >= 0) << "libsodium cannot be initialized";
  return encrypt_age(plain, recipients, [](std::span<unsigned char> bytes) {
    randombytes_buf(bytes.data(), bytes.size());
  });
}

}  // namespace tidemill::actors::tinker
