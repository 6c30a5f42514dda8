// SPDX-License-Identifier: Apache-2.0
#include "engines/replay/replay_tokens.hpp"

#include "base/digest.hpp"
#include "base/random.hpp"

namespace tidemill::engines {

std::uint64_t replay_weight_bits(const std::string& digest) {
  std::uint64_t bits = 0;
  for (const char c : digest) {  // every character affects the result
    bits = keyed_bits(bits, static_cast<unsigned char>(c), 0);
  }
  return bits;
}

std::int32_t replay_token(std::uint64_t seed, std::uint64_t weight_bits, std::uint64_t draw_key,
                          std::uint64_t position) {
  constexpr std::uint64_t kVocabulary = 1000;
  return static_cast<std::int32_t>(keyed_bits(seed ^ weight_bits, draw_key, position) %
                                   kVocabulary);
}

float replay_logprob(std::uint64_t weight_bits, std::int32_t token, std::uint64_t t) {
  const auto stream = static_cast<std::uint64_t>(token);
  return static_cast<float>(-0.01 - 3.0 * keyed_uniform(weight_bits, stream, t));
}

}  // namespace tidemill::engines
