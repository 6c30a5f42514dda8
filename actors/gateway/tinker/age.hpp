// SPDX-License-Identifier: Apache-2.0
// Encrypts files to age recipients.
//
// Source: the age file format, https://c2sp.org/age, with X25519 recipients; keys are derived with
// HKDF-SHA-256 (RFC 5869), wrapped and encrypted with ChaCha20-Poly1305 (RFC 8439). Recipients are
// written in Bech32 (BIP 173).
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace tidemill::actors::tinker {

/// The public key of a recipient.
using AgeRecipient = std::array<unsigned char, 32>;

/// Fills bytes with random bits that cannot be predicted.
using RandomBytes = std::function<void(std::span<unsigned char>)>;

/// Parses a recipient, "age1...".
/// Errors: `kInvalidArgument` for anything else, such as an SSH key.
[[nodiscard]] Result<AgeRecipient> parse_age_recipient(std::string_view text);

/// Returns `plain` encrypted to all of `recipients`, as an age file. Takes time in proportion to
/// `plain`. Requires a recipient.
[[nodiscard]] std::string encrypt_age(std::string_view plain,
                                      std::span<const AgeRecipient> recipients,
                                      const RandomBytes& random);

/// Does the same with the system's random numbers.
[[nodiscard]] std::string encrypt_age(std::string_view plain,
                                      std::span<const AgeRecipient> recipients);

}  // namespace tidemill::actors::tinker
