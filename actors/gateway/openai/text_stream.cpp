// SPDX-License-Identifier: Apache-2.0
#include "actors/gateway/openai/text_stream.hpp"

#include <algorithm>
#include <utility>

namespace tidemill::actors::openai {

TextStream::TextStream(const engines::Tokenizer& tokenizer, std::vector<std::string> stops,
                       std::int32_t before)
    : decoder_(tokenizer, engines::SpecialTokenText::kDrop),
      stops_(std::move(stops)),
      matcher_(engines::StopMatcher::create(stops_).value()) {
  (void)decoder_.push(before);
}

std::string TextStream::push(std::int32_t id) {
  return add(decoder_.push(id));
}

std::string TextStream::finish() {
  std::string text = add(decoder_.finish());
  if (!stopped_) {
    text += std::exchange(held_, {});
  }
  return text;
}

std::string TextStream::add(const std::string& piece) {
  if (stopped_) {
    return {};
  }
  held_ += piece;
  std::size_t size = held_.size();
  if (const auto match = matcher_.feed(piece)) {
    stopped_ = true;
    size = static_cast<std::size_t>(match->begin - held_begin_);
  } else {
    size -= partial_suffix_length(held_, stops_);
  }
  std::string text = held_.substr(0, size);
  held_.erase(0, size);
  held_begin_ += size;
  return text;
}

std::size_t partial_suffix_length(const std::string& text, const std::vector<std::string>& stops) {
  std::size_t longest = 0;
  for (const std::string& stop : stops) {
    for (std::size_t size = std::min(text.size(), stop.size() - 1); size > longest; --size) {
      if (text.compare(text.size() - size, size, stop, 0, size) == 0) {
        longest = size;
      }
    }
  }
  return longest;
}

}  // namespace tidemill::actors::openai
