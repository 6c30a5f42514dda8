// SPDX-License-Identifier: Apache-2.0
#include "engines/constraint/token_index.hpp"

#include <algorithm>

namespace tidemill::engines {

TokenIndex::TokenIndex(std::int32_t vocabulary,
                       const std::function<std::string_view(std::int32_t token)>& bytes_of)
    : vocabulary_(vocabulary) {
  offsets_.push_back(0);
  for (std::int32_t token = 0; token < vocabulary; ++token) {
    const std::string_view bytes_of_token = bytes_of(token);
    text_.insert(text_.end(), bytes_of_token.begin(), bytes_of_token.end());
    offsets_.push_back(text_.size());
    if (!bytes_of_token.empty()) {
      tokens_.push_back(token);
    }
  }
  std::ranges::sort(tokens_, [&](std::int32_t a, std::int32_t b) {
    const std::string_view first = bytes(a);
    const std::string_view second = bytes(b);
    return first != second ? first < second : a < b;
  });
  nodes_.emplace_back();
  std::vector<std::int32_t> path{0};  // the nodes of the last token's prefixes
  std::string_view last;
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    const std::string_view token = bytes(tokens_[i]);
    const auto common =
        static_cast<std::size_t>(std::ranges::mismatch(token, last).in1 - token.begin());
    for (; path.size() > common + 1; path.pop_back()) {
      nodes_[static_cast<std::size_t>(path.back())].end = num_nodes();
    }
    for (std::size_t depth = common; depth < token.size(); ++depth) {
      path.push_back(num_nodes());
      Node& node = nodes_.emplace_back();
      node.byte = static_cast<std::uint8_t>(token[depth]);
      node.depth = static_cast<std::int32_t>(depth) + 1;
      node.first_token = static_cast<std::int32_t>(i);
      node.last_token = static_cast<std::int32_t>(i);
      max_depth_ = std::max(max_depth_, node.depth);
    }
    nodes_[static_cast<std::size_t>(path.back())].last_token = static_cast<std::int32_t>(i) + 1;
    last = token;
  }
  for (const std::int32_t node : path) {
    nodes_[static_cast<std::size_t>(node)].end = num_nodes();
  }
}

std::string_view TokenIndex::bytes(std::int32_t token) const noexcept {
  const std::size_t begin = offsets_[static_cast<std::size_t>(token)];
  return std::string_view(text_.data() + begin,
                          offsets_[static_cast<std::size_t>(token) + 1] - begin);
}

}  // namespace tidemill::engines
