// SPDX-License-Identifier: Apache-2.0
// The text of a response as its tokens arrive, without the stop string that ends it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engines/sampling/stop_matcher.hpp"
#include "engines/tokenizer/tokenizer.hpp"

namespace tidemill::actors::openai {

/// Decodes tokens and holds back text that may be the beginning of a stop string.
///
/// The results, concatenated, are the text before the first stop string.
class TextStream {
public:
  /// `before` is the token before the first one, so that a tokenizer that drops a space at the
  /// beginning of a text keeps the one of the response.
  /// Requires stop strings that `StopMatcher::create` accepts.
  TextStream(const engines::Tokenizer& tokenizer, std::vector<std::string> stops,
             std::int32_t before);

  /// Returns the text that this token completes and that can no longer be part of a stop string.
  /// May be empty.
  [[nodiscard]] std::string push(std::int32_t id);
  /// Returns the rest of the text.
  [[nodiscard]] std::string finish();

private:
  [[nodiscard]] std::string add(const std::string& piece);

  engines::IncrementalDecoder decoder_;
  std::vector<std::string> stops_;
  engines::StopMatcher matcher_;
  std::string held_;              // not returned yet
  std::uint64_t held_begin_ = 0;  // its offset in the text
  bool stopped_ = false;
};

/// Returns the length of the longest suffix of `text` that is a proper prefix of one of `stops`.
[[nodiscard]] std::size_t partial_suffix_length(const std::string& text,
                                                const std::vector<std::string>& stops);

}  // namespace tidemill::actors::openai
